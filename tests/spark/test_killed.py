"""A driver is killed in the middle of its work, another goes on: nothing is missing, nothing is twice."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cql.cases import QN_LONG, by_instant, expected, meant
from tests.spark import killed_driver
from tests.spark.cql_streams import UNTIL, random_streams
from tests.spark.helpers import again, ids, run_now
from tests.spark.test_backfill import Shedding
from tests.spark.test_cql import changes_in
from tests.spark.test_sink import ROWS, make_numbers, written
from tests.waits import ran

from penstock.backfill.work import backfill
from penstock.spark.sink import log_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Killed:
    """What a driver left that was killed."""

    folder: Path
    shed: list[int]
    """Rows that its backfill was about."""


@pytest.fixture(scope="module")
def killed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """One JVM for all tests: three things were under way in it."""
    folder = tmp_path_factory.mktemp("killed")
    make_numbers(folder / "numbers")
    (folder / "cql").mkdir()
    with Shedding(folder / "log") as shedding:
        shedding.grants()
        shed = shedding.shed()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_paths())}
    command = [sys.executable, killed_driver.__file__, folder]
    driver = ran(command, env=environment, start_new_session=True)
    assert driver.returncode == -9, driver.stderr
    return Killed(folder, shed)


def import_paths() -> list[str]:
    """The tests' own place, and what this process was told."""
    return [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]


def test_a_sink_appends_its_last_batch_once(spark: SparkSession, killed: Killed) -> None:
    assert len(written(killed.folder / "out")) == 400 * (killed_driver.LAST_BATCH + 1)
    numbers = killed_driver.numbers_of(spark, killed.folder)
    with log_sink(killed.folder / "out", numbers.schema) as sink:
        writer = numbers.writeStream.foreachBatch(sink)
        run_now(writer.option("checkpointLocation", str(killed.folder / "cp")))
    assert written(killed.folder / "out") == list(range(ROWS))


def test_a_backfill_adds_nothing_twice(spark: SparkSession, killed: Killed) -> None:
    place = killed.folder / "more"
    assert 0 < len(ids(spark.read.parquet(str(place)))) < len(killed.shed)
    done = backfill(spark, killed.folder / "log", "hot", killed_driver.identity, place)
    assert done.left == 0
    assert done.revisions[0] == 2
    assert ids(spark.read.parquet(str(place))) == killed.shed


def test_an_answer_of_cql_is_that_of_the_definition(spark: SparkSession, killed: Killed) -> None:
    with killed_driver.answering(spark, killed.folder) as run:
        answer, batches = again(lambda: run.answer(meant(QN_LONG), "relation"))
    assert batches > killed_driver.LAST_BATCH + 2
    streams = random_streams(killed_driver.SEED, killed_driver.MOST)
    assert by_instant(changes_in(answer)) == expected(meant(QN_LONG), streams, UNTIL)
