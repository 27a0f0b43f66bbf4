"""A governed query on Spark: reads a stream by grants, and its books add up.

Starts a JVM. Under `availableNow` nothing is shed, so the output is the same on any machine. A query that
goes on sheds the rows that cannot be done within the target, and `_weight` makes up for them.
"""

import tempfile
from pathlib import Path

import pyarrow as pa

import penstock
from penstock.log.embedded import EmbeddedLog
from penstock.log.producer import Producer


def fill(stream: Path) -> None:
    """A thousand readings of five devices."""
    schema = pa.schema([("device", pa.int64()), ("celsius", pa.float64())])
    with EmbeddedLog.create(stream, schema) as log, Producer(log) as producer:
        numbers = range(1_000)
        producer.send({"device": [n % 5 for n in numbers], "celsius": [15.0 + n % 80 for n in numbers]})


def main(folder: Path) -> None:
    fill(folder / "logs" / "readings")
    spark = penstock.session(master="local[2]", memory="1g")
    config = {"log": folder / "logs", "classes": {"gold": {"target": "5s"}}}
    with penstock.attach(spark, config) as flow:
        readings = flow.read_stream("readings", cls="gold", metadata=["_position", "_weight"])
        hot = readings.where("celsius >= 94").writeStream.format("memory").queryName("hot")
        query = hot.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()
        for row in sorted(spark.table("hot").collect(), key=lambda row: row["_position"])[:3]:
            print(f"device {row['device']}: {row['celsius']} at position {row['_position']}")
        gold = flow.status()["classes"]["gold"]
        print(", ".join(f"{gold[name]} {name}" for name in ("offered", "admitted", "shed", "waiting")))
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="penstock-example-") as folder:
        main(Path(folder))
