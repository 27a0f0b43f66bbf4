"""The driver that `spark/replay-crash` kills: two governed queries, to parquet and to a log stream.

    python crash_driver.py FOLDER [SECONDS]

Prints "running PID", the PID of the control plane, once both run; ends cleanly after so many seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import penstock
from penstock.spark.sink import log_sink

CLASSES = {"files": {"target": "1s", "shed": "row"}, "stream": {"target": "1s", "shed": "sample"}}


def main(folder: Path, seconds: float) -> None:
    spark = penstock.session(app="crash", master="local[2]", memory="1g")
    config = {"log": folder / "log", "classes": CLASSES, "fail_open_after": "2s"}
    with penstock.attach(spark, config) as flow:
        for_files = flow.read_stream("readings", cls="files", query="files", metadata=["_position", "_seq"])
        for_stream = flow.read_stream("readings", cls="stream", query="stream", metadata=["_position"])
        results = for_stream.selectExpr("k", "v", "_position as position")
        with log_sink(folder / "log" / "results", results.schema) as sink:
            files = for_files.select("k", "v", "_position", "_seq").writeStream.format("parquet")
            queries = [
                flow.start(
                    files.option("checkpointLocation", str(folder / "checkpoint-files")).option(
                        "path", str(folder / "files")
                    )
                ),
                flow.start(
                    results.writeStream.foreachBatch(sink).option(
                        "checkpointLocation", str(folder / "checkpoint-stream")
                    )
                ),
            ]
            print(f"running {flow.control.pid if flow.control else 0}", flush=True)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if not all(query.isActive for query in queries):
                    raise SystemExit(str([query.exception() for query in queries]))
                time.sleep(0.2)
            flow.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9)
