"""Modules beside a pipeline's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.beside import importable, modules_of

PRINT = "import json, my_queries, helpers.more; print(json.__file__, my_queries.WHAT, helpers.more.WHAT)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "json.py").write_text("raise SystemExit('not the json that Python has')\n")
    (tmp_path / "pyarrow.py").write_text("raise SystemExit('not pyarrow')\n")
    (tmp_path / "my_queries.py").write_text("WHAT = 'mine'\n")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "more.py").write_text("WHAT = 'more'\n")
    (tmp_path / "a-file.yaml").write_text("log: logs\n")
    return tmp_path


def test_processes_find_modules_beside_a_pipeline_that_have_no_namesake(folder: Path) -> None:
    with importable(folder):
        said = subprocess.run(
            [sys.executable, "-c", PRINT], capture_output=True, text=True, cwd="/", check=False
        )
    assert said.returncode == 0, said.stderr
    assert said.stdout.split()[1:] == ["mine", "more"]
    assert str(folder) not in said.stdout.split()[0]


def test_modules_beside_a_pipeline_hide_no_others(folder: Path) -> None:
    assert [path.name for path in modules_of(folder)] == ["helpers", "my_queries.py"]


def test_the_driver_finds_modules_beside_a_pipeline_last_and_only_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in ("/somewhere", None):
        if before is None:
            monkeypatch.delenv("PYTHONPATH", raising=False)
        else:
            monkeypatch.setenv("PYTHONPATH", before)
        path = list(sys.path)
        with importable(folder):
            assert sys.path == [*path, str(folder)]
            found = os.environ["PYTHONPATH"].split(os.pathsep)
            assert str(folder) not in found
            assert found[:-1] == ([] if before is None else [before])
        assert sys.path == path
        assert os.environ.get("PYTHONPATH") == before


def test_a_pipeline_of_plain_values_has_no_modules_beside_it() -> None:
    path = list(sys.path)
    with importable(None):
        assert sys.path == path
