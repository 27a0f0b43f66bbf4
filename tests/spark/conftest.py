"""One Spark session for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTED: list[SparkSession] = []
"""The session, once a test has needed it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses the session, or a fixture that does, is one that needs Spark."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A quiet session on two cores. A test that starts a JVM of its own is marked `spark` by hand."""
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.streaming.checkpointLocation": (folder / "checkpoints").as_uri(),
    }
    started = session(app="penstock-tests", master="local[2]", memory="1g", **settings)
    STARTED.append(started)
    yield started
    STARTED.remove(started)
    started.stop()


@pytest.fixture(scope="module", autouse=True)
def _no_query_is_left() -> Iterator[None]:
    """Files share the session in any order: a query that one leaves behind would count in the next."""
    yield
    for query in [query for started in STARTED for query in started.streams.active]:
        query.stop()
