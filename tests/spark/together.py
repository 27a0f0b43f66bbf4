"""Cases of a test that run at the same time: small micro-batches leave the cores idle most of the time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

import pytest
from pyspark.sql import SparkSession

AT_ONCE = 4
PATIENCE_S = 300.0

Case = TypeVar("Case", bound=Hashable)
Found = TypeVar("Found")


class Together(Generic[Case, Found]):
    """What came of each case."""

    def __init__(self, futures: dict[Case, Future[Found]]) -> None:
        self._futures = futures

    def __getitem__(self, case: Case) -> Found:
        """Waits until it has been run; raises what it raised."""
        return self._futures[case].result(PATIENCE_S)


@contextmanager
def together(
    request: pytest.FixtureRequest,
    test: str,
    spark: SparkSession,
    run: Callable[[SparkSession, dict[str, object]], Found],
    key: str,
) -> Iterator[Together[object, Found]]:
    """Runs all selected cases of a test, each on a session of its own, so that its settings are its own.

    Args:
        request: Of a fixture of the test's module.
        test: The test's name.
        spark: The tests' session.
        run: Runs a case, given its parameters.
        key: The parameter by which a case is known.
    """
    selected = [
        item.callspec.params
        for item in request.session.items
        if getattr(item, "originalname", "") == test and item.path == request.path
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {params[key]: pool.submit(run, spark.newSession(), params) for params in selected}
        yield Together(futures)
