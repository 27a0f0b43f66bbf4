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

import penstock
from penstock.log.paced import PacedLog

SHED_S = 15.0


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
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    (folder / "executors").write_text(str(len(executors)))
    classes = {"all": {"target": "5s", "dry_run": True}, "some": {"target": "1s"}}
    config = {"log": log, "classes": classes, "read_from": read_from}
    with penstock.attach(spark, config) as flow:
        whole = flow.read_stream("filled", cls="all").withWatermark("ts", "1 second")
        counted = whole.groupBy(F.window("ts", "1 second"), "k").agg(F.count("*").alias("n"))
        query = (
            counted.select(F.col("window.start").alias("start"), "k", "n")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "cp-whole"))
            .trigger(availableNow=True)
            .start(str(folder / "whole"))
        )
        if not query.awaitTermination(180):
            raise SystemExit("the query over everything did not end")
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
        flow.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
