"""A governed driver for `spark/cluster`: the same queries wherever Spark runs.

    python cluster_driver.py FOLDER MASTER [READ_FROM]

Writes to FOLDER: `whole` (a windowed aggregate over everything, nothing shed), `shed` (rows of an overloaded
query, with their positions) and `executors` (how many there were).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.spark.driver.flow import Flow
from penstock.streams.paced.stream import PacedLog

SHED_S = 15.0


def _wait_for_rows(flow: Flow, query: StreamingQuery) -> bool:
    """Until the control plane knows the query, and its first batch is done."""
    until = time.monotonic() + 120.0
    while time.monotonic() < until and query.isActive:
        if any(q["batches"] for q in flow.status().to_json()["classes"]["all"]["queries"].values()):
            return True
        time.sleep(0.2)
    return False


def main(folder: Path, log: Path, master: str, read_from: str | None) -> None:
    conf = {}
    if not master.startswith("local"):
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "1g",
            "spark.executor.cores": "1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }
    spark = penstock.session(app="cluster", master=master, memory="1g", local_files=True, **conf)
    classes = {"all": {"target": "5s", "dry_run": True}, "some": {"target": "1s"}}
    config = {"log": log, "classes": classes, "read_from": read_from}
    with penstock.attach(spark, config) as flow:
        whole = flow.read_stream("filled", cls="all").withWatermark("ts", "1 second")
        counted = whole.groupBy(F.window("ts", "1 second"), "k").agg(F.count("*").alias("n"))
        query = (
            counted.select(F.col("window.start").alias("start"), "k", "n")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "cp-whole"))
            .start(str(folder / "whole"))
        )
        # a last row, long after the others, and the drain's tick close every window of theirs
        if not _wait_for_rows(flow, query) or not flow.drain(120.0):
            raise SystemExit(f"the query over everything did not end: {query.exception()}")
        query.stop()
        PacedLog(log / "fast").begin(restart=True)
        some = flow.read_stream("fast", cls="some", query="shed", metadata=["_position"])
        query = (
            some.select("_position", F.sha2(F.col("v").cast("string"), 256).alias("h"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "cp-shed"))
            .start(str(folder / "shed"))
        )
        until = time.monotonic() + SHED_S
        while time.monotonic() < until and query.isActive:
            time.sleep(0.2)
        if (error := query.exception()) is not None:
            raise SystemExit(str(error))
        executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        (folder / "executors").write_text(str(len(executors)))
        flow.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
