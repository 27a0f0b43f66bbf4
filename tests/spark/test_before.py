"""A query goes on from a checkpoint that an earlier Penstock wrote; see `tests/before`."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from tests.segments import headers, read
from tests.spark.helpers import begin, rows_of, until

import penstock
from penstock.streams.embedded.log import EmbeddedLog

DATA = Path(__file__).parents[1] / "before" / "data"


def test_a_query_goes_on_from_an_earlier_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    for part in ("log", "checkpoint"):
        shutil.copytree(DATA / part, tmp_path / part)
    with EmbeddedLog(tmp_path / "log" / "readings") as log:
        log.append(read(log, headers(log, 0, 0, 1)[0]).drop_columns(["_arrival"]))
    with penstock.attach(spark, {"log": tmp_path / "log", "classes": {"gold": {"target": "600s"}}}) as flow:
        rows = flow.read_stream("readings", cls="gold", query="copy").select("id")
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = begin(writer.start)
        until(lambda: rows_of(flow, "copy") == 1050, "the rows of before and the new ones", query)
