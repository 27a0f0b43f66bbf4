"""Reads Spark's plans: classes and texts of Catalyst, and of a running query. No other module reads them.

Spark keeps none of these names and texts stable, so any version may change them. `check_version` says once
which figures may be missing on a version that was not tried. On such a version, a reading that fails gives
what it gives for a query about which the plan says nothing. On a version that was tried, the error is raised.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from penstock.spark.driver.lateness import LateRule
from penstock.spark.source.options import FORMAT_NAME, SourceOptions
from penstock.streams.opening import open_stream
from penstock.vocabulary.errors import PenstockError

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TRIED = ("4.3",)
"""Versions of Spark on which all readings were tried, without the last number."""
_untried: set[str] = set()
"""Versions that were not tried and that this process has met."""

WINDOW = re.compile(r"- (-?\d+)\) % (\d+)\)")
"""Finds where windows start and their slide, in microseconds, in the expression of a window's start."""
LENGTH = re.compile(r"\+ (\d+)\), LongType, Timestamp")
"""Finds the length of a window in the expression of its end."""


def check_version(version: str) -> None:
    """Warns once in a process if a version of Spark was not tried.

    Args:
        version: Spark's own version, as `spark.version` says it.
    """
    if ".".join(version.split(".")[:2]) in TRIED or version in _untried:
        return
    _untried.add(version)
    _log.warning(
        "Penstock was not tried with Spark %s, only with %s. Penstock reads some facts from Spark's plans, "
        "and may miss them: dropped_by_watermark may be too low, and SIC too high then; windows of a stream "
        "without new rows may close late; flow.share may not find the readers of a result; an interval "
        "trigger, several sources of one query, or a backfill of a query with state may not be refused. "
        "Everything else works.",
        version,
        ", ".join(TRIED),
    )


def _reading(missing: Callable[[], Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Marks a function that reads a plan.

    Args:
        missing: Gives the result if the reading fails on a version that was not tried.
    """

    def marked(read: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(read)
        def reading(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except PenstockError:
                raise
            except Exception as error:
                if not _untried:
                    raise
                _log.debug("%s: Spark's plan could not be read: %r", read.__name__, error)
                found: T = missing()
                return found

        return reading

    return marked


# -- facts of a query -------------------------------------------------------------------------------


@_reading(list)
def sources_of(query: StreamingQuery | DataFrame) -> list[SourceOptions]:
    """The governed sources of a query or of a result, from the options in its analysed plan.

    To Spark, a DataFrame united with itself is one source, and a DataFrame joined with itself is two.
    """
    found = {}
    for leaf in _each(_analysed(query).collectLeaves()):
        if _class_of(leaf) == "StreamingRelationV2":
            text = leaf.extraOptions().get(FORMAT_NAME)
            if text is not None:
                found[text, leaf.output().toString()] = SourceOptions.from_option(text)
    return list(found.values())


@_reading(bool)
def closes_windows(query: StreamingQuery) -> bool:
    """Whether answers wait for the watermark: windows are sent out once they are closed."""
    execution = query._jsq.streamingQuery()
    if str(execution.outputMode().toString()) != "Append":
        return False
    plan = str(execution.analyzedPlan().toString())
    return "EventTimeWatermark" in plan and "Aggregate" in plan


@_reading(lambda: None)
def interval_trigger(query: StreamingQuery) -> str | None:
    """The query's trigger in Spark's words if it is an interval; `None` for every other trigger."""
    trigger = str(query._jsq.streamingQuery().trigger().toString())
    is_interval = trigger.startswith("ProcessingTimeTrigger(") and trigger != "ProcessingTimeTrigger(0)"
    return trigger if is_interval else None


@_reading(bool)
def is_starting(query: StreamingQuery) -> bool:
    """Whether the Python processes of the query's sources are still starting."""
    return str(query._jsq.streamingQuery().state().get().toString()) == "INITIALIZING"


def operators_of(results: DataFrame) -> set[str]:
    """Names of the operators in the analysed plan of a result.

    An error is raised on every version: a backfill must not take a query with state for one without.
    """
    return {node.nodeName() for node in _nodes(_analysed(results))}


# -- event time -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventTimes:
    """What a query's plan says about event time.

    Attributes:
        rules: When rows of a stream are late, by the stream's id.
        places: Directory of each stream, by the stream's id.
    """

    rules: Mapping[str, LateRule]
    places: Mapping[str, str]


@_reading(lambda: None)
def event_times_of(query: StreamingQuery) -> EventTimes | None:
    """When rows of a query's streams are late, from its analysed plan; `None` if the plan does not say."""
    columns, alias, watermarks, texts = {}, {}, [], set()
    for node in _nodes(_analysed(query)):
        kind = _class_of(node)
        if kind == "StreamingRelationV2":
            text = node.extraOptions().get(FORMAT_NAME)
            for attribute in _each(node.output()):
                columns[attribute.exprId().id()] = text, attribute.name()
        elif kind == "EventTimeWatermark":
            watermarks.append(node.eventTime().exprId().id())
        for expression in _each(node.expressions()):
            if _class_of(expression) == "Alias":
                alias[expression.exprId().id()] = expression.child()
            texts.add(str(expression.toString()))
    window = window_of(texts)
    rules: dict[str, LateRule] = {}
    places: dict[str, str] = {}
    for number in watermarks:
        at = number
        while at in alias and _class_of(alias[at]) == "AttributeReference":
            at = alias[at].exprId().id()
        option, column = columns.get(at, (None, ""))
        if option is None or window is None:
            return None
        place = SourceOptions.from_option(option).stream
        stream = open_stream(place).uid
        rule = LateRule(column, *window)
        if rules.setdefault(stream, rule) != rule:
            return None
        places[stream] = place
    return EventTimes(rules, places)


def window_of(texts: set[str]) -> tuple[int, int, int] | None:
    """Length, slide and start of the only kind of windows in some expressions; zeros if there are no windows.

    `None` if there are several kinds of windows, or session windows.
    """
    found = set()
    for text in texts:
        if "session_window" in text:
            return None
        if "precisetimestampconversion" in text:
            starts, lengths = set(WINDOW.findall(text)), set(LENGTH.findall(text))
            if len(starts) != 1 or len(lengths) != 1:
                return None
            ((start, slide),), (length,) = starts, lengths
            found.add((int(length), int(slide), int(start)))
    if len(found) > 1:
        return None
    return found.pop() if found else (0, 0, 0)


# -- objects of Java --------------------------------------------------------------------------------


def _analysed(query: StreamingQuery | DataFrame) -> Any:
    if isinstance(query, DataFrame):
        return query._jdf.queryExecution().analyzed()
    return query._jsq.streamingQuery().analyzedPlan()


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(i) for i in range(sequence.size()))
