"""What is read from Spark's plans, on fakes of the JVM's objects: these tests need no JVM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.spark.driver import catalyst
from penstock.spark.driver.catalyst import (
    check_version,
    closes_windows,
    event_times_of,
    interval_trigger,
    is_starting,
    operators_of,
    sources_of,
)
from penstock.spark.driver.lateness import LateRule
from penstock.spark.source.options import FORMAT_NAME, SourceOptions
from penstock.streams.embedded.log import EmbeddedLog
from penstock.vocabulary.errors import InvalidInputError

SOURCE = Path(penstock.__file__).parent


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Versions that were not tried and that a test's process has met: none yet."""
    met: set[str] = set()
    monkeypatch.setattr(catalyst, "_untried", met)
    return met


# -- fakes ------------------------------------------------------------------------------------------


class Seq:
    """A sequence of Scala."""

    def __init__(self, *items: Any) -> None:
        self._items = items

    def size(self) -> int:
        return len(self._items)

    def apply(self, index: int) -> Any:
        return self._items[index]


def text(value: str) -> Any:
    """An object of Java with this text."""
    return SimpleNamespace(toString=lambda: value)


class Node:
    """An operator of a plan, or an expression."""

    def __init__(self, kind: str, *children: Node, says: str = "", **facts: Any) -> None:
        self.kind, self._children, self._says = kind, children, says
        for name, fact in facts.items():
            setattr(self, name, lambda fact=fact: fact)

    def getClass(self) -> Any:
        return SimpleNamespace(getSimpleName=lambda: self.kind)

    def nodeName(self) -> str:
        return self.kind

    def children(self) -> Seq:
        return Seq(*self._children)

    def expressions(self) -> Seq:
        return Seq()

    def toString(self) -> str:
        return self._says or "\n".join([self.kind, *(child.toString() for child in self._children)])

    def _leaves(self) -> Iterator[Node]:
        if not self._children:
            yield self
        for child in self._children:
            yield from child._leaves()

    def collectLeaves(self) -> Seq:
        return Seq(*self._leaves())


def expression_id(number: int) -> Any:
    return SimpleNamespace(id=lambda: number)


def column(number: int, name: str = "") -> Node:
    return Node("AttributeReference", says=f"{name}#{number}", exprId=expression_id(number), name=name)


def relation(place: Path | str, number: int = 1, option: str | None = FORMAT_NAME) -> Node:
    """A stream in a plan. Its only column is `ts`, with an id that differs for each read."""
    options = SourceOptions(stream=str(place), read_from="", query="", cls="", address="a", token=f"t{place}")
    given = {} if option is None else {option: options.to_option()}
    output = SimpleNamespace(
        size=lambda: 1, apply=lambda _: column(number, "ts"), toString=lambda: f"List(ts#{number})"
    )
    return Node("StreamingRelationV2", extraOptions=given, output=output)


def watermark(number: int, below: Node) -> Node:
    return Node("EventTimeWatermark", below, eventTime=column(number))


def projected(below: Node, *made: Node) -> Node:
    return Node("Project", below, expressions=Seq(*made))


def alias(number: int, of: Node, says: str = "") -> Node:
    return Node("Alias", says=says, exprId=expression_id(number), child=of)


def a_query(plan: Node | None = None, mode: str = "Append", trigger: str = "", state: str = "ACTIVE") -> Any:
    execution = SimpleNamespace(
        analyzedPlan=lambda: plan,
        outputMode=lambda: text(mode),
        trigger=lambda: text(trigger),
        state=lambda: SimpleNamespace(get=lambda: text(state)),
    )
    return SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))


class Result(DataFrame):
    """A result whose plan is known."""

    def __new__(cls, plan: Node) -> Result:
        return cast("Result", object.__new__(cls))

    def __init__(self, plan: Node) -> None:
        execution = SimpleNamespace(analyzed=lambda: plan)
        self._jdf = SimpleNamespace(queryExecution=lambda: execution)


def create(folder: Path) -> Path:
    EmbeddedLog.create(folder, pa.schema([("ts", pa.timestamp("us"))])).close()
    return folder


def window(size: int, slide: int) -> str:
    """A window as Spark's plans have it."""
    micros = "precisetimestampconversion(ts#1, TimestampType, LongType)"
    begin = f"({micros} - (({micros} - 0) % {slide}))"
    start, end = (
        f"precisetimestampconversion({t}, LongType, TimestampType)" for t in (begin, f"({begin} + {size})")
    )
    return f"named_struct(start, {start}, end, {end})"


# -- what is read -----------------------------------------------------------------------------------


def test_sources_are_the_governed_relations_of_a_plan() -> None:
    table = Node("LocalRelation")
    foreign = relation("c", option=None)
    plan = Node("Join", Node("Filter", relation("a")), Node("Union", foreign, table))
    assert [source.stream for source in sources_of(a_query(plan))] == ["a"]
    assert [source.stream for source in sources_of(Result(plan))] == ["a"]


def test_a_stream_united_with_itself_is_one_source_and_joined_with_itself_two() -> None:
    assert len(sources_of(a_query(Node("Union", relation("a", 1), relation("a", 1))))) == 1
    assert len(sources_of(a_query(Node("Join", relation("a", 1), relation("a", 2))))) == 2


@pytest.mark.parametrize(
    ("plan", "mode", "closes"),
    [
        (Node("Aggregate", watermark(1, relation("a"))), "Append", True),
        (Node("Aggregate", watermark(1, relation("a"))), "Update", False),
        (Node("Aggregate", relation("a")), "Append", False),
        (Node("Deduplicate", watermark(1, relation("a"))), "Append", False),
    ],
)
def test_a_query_closes_windows_if_it_appends_aggregates_behind_a_watermark(
    plan: Node, mode: str, closes: bool
) -> None:
    assert closes_windows(a_query(plan, mode)) is closes


@pytest.mark.parametrize(
    ("trigger", "found"),
    [
        ("ProcessingTimeTrigger(0)", None),
        ("ProcessingTimeTrigger(10000)", "ProcessingTimeTrigger(10000)"),
        ("AvailableNowTrigger", None),
    ],
)
def test_a_trigger_is_told_if_it_is_an_interval(trigger: str, found: str | None) -> None:
    assert interval_trigger(a_query(trigger=trigger)) == found


def test_a_query_is_starting_until_its_sources_have_connected() -> None:
    assert is_starting(a_query(state="INITIALIZING"))
    assert not is_starting(a_query(state="ACTIVE"))


def test_operators_are_those_of_the_whole_plan() -> None:
    plan = Node("Project", Node("Aggregate", Node("Union", relation("a"), Node("LocalRelation"))))
    expected = {"Project", "Aggregate", "Union", "StreamingRelationV2", "LocalRelation"}
    assert operators_of(Result(plan)) == expected


def test_rows_are_late_by_the_streams_own_column_also_under_another_name(tmp_path: Path) -> None:
    place = create(tmp_path / "s")
    renamed = projected(relation(place, 1), alias(7, column(1)))
    windowed = projected(watermark(7, renamed), alias(8, Node("CreateNamedStruct"), window(60, 30)))
    times = event_times_of(a_query(windowed))
    assert times is not None
    assert list(times.rules.values()) == [LateRule("ts", 60, 30, 0)]
    assert list(times.places.values()) == [str(place)]


def test_no_rule_is_told_for_a_time_that_is_computed_or_for_windows_of_two_kinds(tmp_path: Path) -> None:
    place = create(tmp_path / "s")
    computed = projected(relation(place, 1), alias(7, Node("Add")))
    assert event_times_of(a_query(watermark(7, computed))) is None
    two = [alias(8, Node("CreateNamedStruct"), window(size, size)) for size in (10, 60)]
    assert event_times_of(a_query(projected(watermark(1, relation(place, 1)), *two))) is None
    foreign = watermark(1, relation(place, 1, option=None))
    assert event_times_of(a_query(foreign)) is None


# -- versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.3.0", "4.3.7", "4.3.1-SNAPSHOT"])
def test_a_version_that_was_tried_is_not_spoken_of(version: str, caplog: pytest.LogCaptureFixture) -> None:
    check_version(version)
    assert caplog.messages == []


def test_a_version_that_was_not_tried_is_said_once_with_what_may_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        check_version("4.30.1")
    (said,) = caplog.messages
    assert caplog.records[0].levelname == "WARNING"
    assert "not tried with Spark 4.30.1, only with 4.3." in said
    for missing in ("dropped_by_watermark", "SIC", "close late", "flow.share", "trigger", "backfill"):
        assert missing in said


READINGS: list[tuple[Callable[[Any], Any], Any]] = [
    (sources_of, []),
    (closes_windows, False),
    (interval_trigger, None),
    (is_starting, False),
    (event_times_of, None),
]


@pytest.mark.parametrize(("read", "missing"), READINGS, ids=[read.__name__ for read, _ in READINGS])
def test_a_plan_that_cannot_be_read_is_an_error_only_on_a_version_that_was_tried(
    read: Callable[[StreamingQuery], Any], missing: Any
) -> None:
    strange = cast("StreamingQuery", SimpleNamespace(_jsq=SimpleNamespace()))
    with pytest.raises(AttributeError):
        read(strange)
    check_version("5.0.0")
    assert read(strange) == missing


def test_a_backfill_never_takes_a_plan_that_cannot_be_read() -> None:
    check_version("5.0.0")
    with pytest.raises(AttributeError):
        operators_of(Result(cast("Node", SimpleNamespace())))


def test_an_error_of_penstock_is_one_on_every_version(tmp_path: Path) -> None:
    check_version("5.0.0")
    with pytest.raises(InvalidInputError):
        event_times_of(a_query(watermark(1, relation(tmp_path / "nothing", 1))))


def test_no_other_module_reads_plans_of_spark() -> None:
    read = re.compile(
        r"getSimpleName|nodeName|analyzedPlan|queryExecution|collectLeaves|\.trigger\(\)\.toString"
    )
    found = [path.name for path in SOURCE.rglob("*.py") if read.search(path.read_text(encoding="utf-8"))]
    assert found == ["catalyst.py"]
