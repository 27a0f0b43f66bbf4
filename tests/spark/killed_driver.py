"""A driver that kills itself: a sink, a backfill and a query of CQL are in the middle of their work then."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests import waits
from tests.cql.brute import US
from tests.cql.cases import QN_LONG, meant
from tests.spark.cql_streams import BASE, UNTIL, random_streams, tables
from tests.spark.helpers import again, begin

from penstock.backfill.revisions import ParquetRevisions
from penstock.backfill.work import backfill
from penstock.lanes.progress import Stretch
from penstock.spark.cql.bounded import Bounded, bounded
from penstock.spark.session import session
from penstock.spark.sink import log_sink
from penstock.spark.source.ungoverned import read_ungoverned

SEED, MOST, BATCHES = 7, 60, 5
LAST_BATCH = 2
"""The batch in which the sink hangs, and the one after which the answer is cut off."""


def for_ever() -> None:
    threading.Event().wait()


class HangingRevisions(ParquetRevisions):
    """Goes no further once its second revision is there, and nobody has noted that it is."""

    there = threading.Event()

    def publish(self, staged: Path, reader: str, stretch: Stretch) -> int:
        revision = super().publish(staged, reader, stretch)
        if revision == 2:
            self.there.set()
            for_ever()
        return revision


def identity(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("id")


def numbers_of(spark: SparkSession, folder: Path) -> DataFrame:
    return read_ungoverned(spark, folder / "numbers", 400)


def begin_sink(spark: SparkSession, folder: Path) -> None:
    """Appends batches of numbers; hangs when one is appended, before Spark hears of it."""
    there = threading.Event()
    numbers = numbers_of(spark, folder)
    sink = log_sink(folder / "out", numbers.schema)

    def hanging(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        if batch_id == LAST_BATCH:
            there.set()
            for_ever()

    writer = numbers.writeStream.foreachBatch(hanging).option("checkpointLocation", str(folder / "cp"))
    begin(writer.start, asked=lambda _: there.is_set())


def begin_backfill(spark: SparkSession, folder: Path) -> None:
    revisions = HangingRevisions(folder / "more")
    given = (spark, folder / "log", "hot", identity, revisions)
    threading.Thread(target=backfill, args=given, kwargs={"stretch_rows": 1000}, daemon=True).start()
    waits.until(revisions.there.is_set, "the second revision")


def answering(spark: SparkSession, folder: Path) -> AbstractContextManager[Bounded]:
    """The query of CQL, with all that it keeps in a folder."""
    found = tables(random_streams(SEED, MOST), meant(QN_LONG).plan)
    return bounded(spark, found, 2, BATCHES, (UNTIL + BASE) * US, folder / "cql")


def kill_after(batch: Path) -> None:
    waits.until(batch.exists, "a batch of CQL")
    os.killpg(0, signal.SIGKILL)


def main(folder: Path) -> None:
    spark = session(app="killed", master="local[2]", memory="1g", log_level="OFF")
    begin_sink(spark, folder)
    begin_backfill(spark, folder)
    done = folder / "cql" / "checkpoint" / "commits" / str(LAST_BATCH)
    threading.Thread(target=kill_after, args=(done,), daemon=True).start()
    with answering(spark, folder) as run:
        again(lambda: run.answer(meant(QN_LONG), "relation"))
    for_ever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
