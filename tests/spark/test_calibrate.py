"""`penstock calibrate --pipeline`: what a pipeline's query costs on this Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.helpers import again

from penstock.calibration.calibrate import calibrate_query
from penstock.cli import main
from penstock.pipeline.spec.load import load_pipeline
from penstock.spark.beside import importable
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

QUERIES: dict[str, dict[str, Any]] = {
    "mine": {
        "class": "gold",
        "function": "calibrated:mine",
        "streams": ["readings"],
        "metadata": ["_weight"],
        "sink": "console",
    },
    "plain": {"class": "gold", "sql": "SELECT n FROM readings", "sink": {"kind": "noop"}},
    "both": {"class": "gold", "sql": "SELECT a.at FROM readings a JOIN others b ON a.at = b.at"},
}
STREAM = {
    "schema": {"at": "timestamp", "n": "long"},
    "event_time": "at",
    "source": {"kind": "generator", "rate": 9},
}


def pipeline(tmp_path: Path) -> Any:
    raw = {
        "log": str(tmp_path / "log"),
        "classes": {"gold": {"target": "1s"}},
        "streams": {"readings": STREAM, "others": STREAM},
        "queries": QUERIES,
    }
    return load_pipeline(raw)


MODULE = """
def mine(spark, streams):
    return streams["readings"].selectExpr("n * _weight AS weighted")
"""


@pytest.mark.spark
def test_a_query_with_metadata_of_a_module_beside_its_file_is_measured(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "calibrated.py").write_text(MODULE)
    with importable(tmp_path):
        found = again(lambda: calibrate_query(pipeline(tmp_path), "mine", warm_up_s=0.0, spark=spark))
    sys.modules.pop("calibrated", None)
    assert found.query == "mine"
    assert 0 < found.fixed_s < found.floor_s < found.target_s
    assert found.capacity_rows_per_s > 0
    assert 0 < found.headroom <= 1
    assert not (tmp_path / "log").exists(), "made-up rows lie elsewhere"


def test_what_cannot_be_calibrated_is_refused_before_spark_starts(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    with pytest.raises(InvalidInputError, match="one query is calibrated at a time; got: mine, plain, both"):
        calibrate_query(config)
    with pytest.raises(UnknownNameError, match="nobody"):
        calibrate_query(config, "nobody")
    with pytest.raises(InvalidInputError, match="a calibrated query reads one stream; got: both reads"):
        calibrate_query(config, "both")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--query", "hot"], "--query is given with --pipeline"),
        (["--set", "log=x"], "--set is given with --pipeline"),
        (["--pipeline", "x.yaml", "--plot", "x.png"], "--plot is given without --pipeline"),
        (["--pipeline", "x.yaml", "--headroom-true", "0.9"], "--headroom-true is given without --pipeline"),
    ],
)
def test_an_option_of_the_other_plant_is_refused_not_ignored(
    options: list[str],
    rule: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *options]) == 2
    assert rule in capsys.readouterr().err
