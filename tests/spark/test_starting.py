"""Queries that are started one after the other, each once the one before has asked for rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.spark.helpers import create

import penstock
from penstock.spark.driver.flow import Flow
from penstock.spark.driver.starting import LATE, START_TRIES, has_asked, not_ready, start_in_turn
from penstock.vocabulary.errors import PenstockError
from penstock.vocabulary.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


class ScriptedQuery:
    """A query that asks when it was looked at so often, or ends instead."""

    def __init__(self, asks_after: int = 0, error: str | None = None, batches: int = 0) -> None:
        self.asks_after, self.error = asks_after, error
        self.name, self.lastProgress = "scripted", {"batchId": batches} if batches else None
        self.looks = 0
        self.status = {"message": "Initializing sources"}

    @property
    def isActive(self) -> bool:
        return self.error is None

    def exception(self) -> Exception | None:
        return None if self.error is None else RuntimeError(self.error)

    def asked(self) -> bool:
        self.looks += 1
        return self.looks > self.asks_after


class Clock:
    """Seconds that pass when somebody pauses."""

    def __init__(self) -> None:
        self.now_s, self.pauses = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.pauses.append(seconds)


def start(*script: ScriptedQuery, told: list[str] | None = None, clock: Clock | None = None) -> ScriptedQuery:
    """Starts the queries of a script, one with each try."""
    left, clock = list(script), clock or Clock()
    found = start_in_turn(
        lambda: cast("StreamingQuery", left.pop(0)),
        (told if told is not None else []).append,
        asks=lambda query: cast("ScriptedQuery", query).asked,
        forget=lambda query: None,
        timer=clock,
        pause=clock.pause,
    )
    return cast("ScriptedQuery", found)


def test_a_start_is_over_when_the_query_has_asked() -> None:
    query = ScriptedQuery(asks_after=5)
    assert start(query) is query
    assert query.looks == 6


def test_a_query_whose_process_was_late_is_started_again_after_longer_and_longer_pauses() -> None:
    late = [ScriptedQuery(error=f"{LATE}.\n=== Streaming Query ===") for _ in range(START_TRIES - 1)]
    good, told, clock = ScriptedQuery(), list[str](), Clock()
    assert start(*late, good, told=told, clock=clock) is good
    assert clock.pauses == [2.0**i for i in range(START_TRIES - 1)]
    assert told == [
        f"query scripted: its Python process did not connect within Spark's 10 s; starting it again, "
        f"{i + 2} of {START_TRIES}"
        for i in range(START_TRIES - 1)
    ]


def test_a_query_that_is_late_each_time_is_given_back_as_it_ended() -> None:
    late = [ScriptedQuery(error=LATE) for _ in range(START_TRIES)]
    assert start(*late) is late[-1]


@pytest.mark.parametrize(
    "ended",
    [ScriptedQuery(error="a bad row"), ScriptedQuery(error=LATE, batches=1)],
    ids=["another error", "after a batch"],
)
def test_a_query_that_ends_otherwise_is_not_started_again(ended: ScriptedQuery) -> None:
    assert start(ended) is ended


def test_a_query_that_never_asks_is_told_of() -> None:
    with pytest.raises(PenstockError, match=r"query scripted asks for rows within 180 s; got: Initializing"):
        start(ScriptedQuery(asks_after=10**9))


def test_a_pipeline_is_ready_when_its_own_queries_ask_and_new_ones_are_past_their_first_batch() -> None:
    def status(**queries: tuple[int, bool, int]) -> Status:
        named = {
            key: {
                "name": key.rstrip("_"),
                "readers": {str(i): {} for i in range(n)},
                "running": r,
                "batches": b,
            }
            for key, (n, r, b) in queries.items()
        }
        return Status.from_json({"classes": {"gold": {"delay": {}, "queries": named}}})

    wanted = {"one": 1, "two": 2}
    assert not_ready(status(theirs=(1, True, 3)), wanted, ()) == ["one", "two"], (
        "another driver's is no matter"
    )
    assert not_ready(status(one=(1, False, 0), two=(1, False, 0)), wanted, ()) == ["two"], (
        "a source is missing"
    )
    assert not_ready(status(one=(1, False, 0), two=(2, True, 1)), wanted, ()) == ["two"], "a batch runs"
    assert not_ready(status(one=(1, False, 0), two=(2, False, 0)), wanted, ["one"]) == ["one"]
    assert not_ready(status(one=(1, False, 1), two=(1, False, 0), two_=(1, False, 0)), wanted, ["one"]) == []


def test_the_next_query_is_started_when_the_one_before_has_asked(spark: SparkSession, tmp_path: Path) -> None:
    create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "5s"}}}) as flow:
        for i in range(3):
            writer = flow.read_stream("readings", cls="gold", query=f"q{i}").writeStream.format("noop")
            query = flow.start(writer)
            assert has_asked(query)()
            assert names(flow) == {f"q{j}" for j in range(i + 1)}


def names(flow: Flow) -> set[str]:
    queries = flow.status().to_json()["classes"]["gold"]["queries"].values()
    return {query["name"] for query in queries if query["readers"]}


def test_a_query_that_spark_gave_up_on_can_be_started_again_in_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark leaves an empty folder of offsets, and a memory sink does not go on from one."""
    create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "5s"}}}) as flow:
        frame = flow.read_stream("readings", cls="gold")
        writer = frame.writeStream.format("memory").queryName("given_up_on")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        tries: list[Any] = []

        def start() -> StreamingQuery:
            tries.append(writer.start() if tries else GivenUpOn(writer.start))
            return cast("StreamingQuery", tries[-1])

        assert start_in_turn(start, pause=lambda _: None).isActive
        assert len(tries) == 2


class GivenUpOn:
    """A query that Spark has given up on before its first batch."""

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        query = start()
        query.stop()
        self._jsq, self.name, self.isActive, self.lastProgress = query._jsq, "given_up_on", False, None

    def exception(self) -> Exception:
        return RuntimeError(LATE)
