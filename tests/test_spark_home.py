"""What makes the tests on Spark quick: a home whose Python is compiled, and a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark_home import make_spark_home, with_own_home

TESTS = Path(__file__).parent


def test_a_home_of_spark_has_its_jars_and_no_zipped_python(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    home = make_spark_home(tmp_path)
    assert home is not None
    assert make_spark_home(tmp_path) == home
    assert sorted(path.name for path in home.iterdir()) == ["bin", "jars"]
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert (home / "bin" / "spark-submit").is_file()
    assert with_own_home({"SPARK_HOME": str(home), "HOME": "/"}) == {"HOME": "/"}


def test_a_link_to_a_spark_that_is_elsewhere_now_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    home = make_spark_home(tmp_path)
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert make_spark_home(tmp_path) == home
    assert (home / "jars").is_dir()
    assert {path.name for path in home.iterdir()} == {"bin", "jars"}


def test_tests_that_start_a_jvm_are_all_in_one_folder() -> None:
    """`make test` looks for them there alone: to collect the others would take longer than some of them."""
    marked = {path for path in TESTS.rglob("*.py") if "mark.spark" in path.read_text(encoding="utf-8")}
    assert {path.relative_to(TESTS).parts[0] for path in marked - {Path(__file__)}} == {"spark"}
