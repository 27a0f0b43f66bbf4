"""Views: named queries that several other queries read, computed in each of them or once for all.

A view that is computed once is a query of its own. Its rows go into a shared stream of the log, which the
other queries read. That pays if many rows come and few pass the view: the passing rows are written and read
again, but the others are read once instead of once a query. One more query then has micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from sqlglot import exp

from penstock.config.mistakes import Part
from penstock.cql.analysis.windowing import streams_read, tuple_by_tuple
from penstock.cql.errors import CqlError
from penstock.cql.meaning.lower import stream_of
from penstock.cql.meaning.plan import Map, Plan, Query, Scan
from penstock.pipeline.spec.cql import Stream, add_view, catalog_of, continuous

if TYPE_CHECKING:
    from penstock.pipeline.spec.pipeline import PipelineConfig
    from penstock.pipeline.spec.streams import StreamConfig

Computed = Literal["auto", "once", "each"]
WRITING = 2.0
"""Cost of writing a row into the log, relative to reading a row: 1.5 to 2.3 in five runs."""
MICRO_BATCH_ROWS = 350_000
"""Fixed cost of a micro-batch, as a number of rows read at that cost: 0.1 s against 0.28 us a row."""
BATCHES_PER_TARGET = 2.0
"""How often a query has a micro-batch in a delay target."""


class ViewConfig(Part):
    """A view: its CQL, and whether it is computed once or in each query that reads it."""

    cql: str = Field(description="SELECT ... FROM readings WHERE ...")
    computed: Computed = Field(
        "auto", description="once (a stream of the log), each (in every query), or auto: what is cheaper"
    )


def query_of(config: PipelineConfig, view: str) -> Query:
    """The meaning of a view, which may read views before it.

    Raises:
        CqlError: The view has no meaning.
    """
    names = list(config.views)
    before = {name: config.views[name].cql for name in names[: names.index(view)]}
    return add_view(catalog_of(config.streams, before), view, config.views[view].cql)


def readers_of(config: PipelineConfig, view: str) -> list[str]:
    """The queries that read a view, directly or through other views."""
    query = query_of(config, view)
    types = {name: c.type for name, c in zip(query.names, query.plan.columns, strict=True)}
    streams: dict[str, Stream] = {**config.streams, view: _Columns(types)}
    others = {name: each.cql for name, each in config.views.items() if name != view}
    found = []
    for name, reader in config.queries.items():
        if reader.is_continuous:
            text = reader.continuous_text(config.streams)
            if view in streams_read(continuous(text, streams, others).query.plan):
                found.append(name)
    return found


@dataclass(frozen=True, slots=True)
class _Columns:
    """The stream that a view would be if it were computed once."""

    columns: Mapping[str, str]
    event_time: str | None = None
    changes: None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """Whether a view is computed once, and why."""

    once: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Measurements of the stream that a view reads.

    Attributes:
        fraction: Fraction of the stream's rows that pass the view.
        rows_per_s: Rate of the stream's rows.
    """

    fraction: float
    rows_per_s: float


def decide(
    config: PipelineConfig, name: str, look: Callable[[Plan], Seen | None], began: bool | None = None
) -> Decided:
    """Whether one view is computed once.

    Args:
        config: The pipeline.
        name: The view.
        look: Measures the stream of a plan; `None` if nothing is known.
        began: Whether the view was computed once when its readers' checkpoints were made; `None` if they are
            new.

    Raises:
        CqlError: The view must be computed once, by the configuration, and cannot be.
    """
    wanted = config.views[name].computed
    if wanted == "each":
        return Decided(False, "as it says")
    refused = _refusal(config, name)
    if refused is not None:
        if wanted == "once":
            raise refused
        return Decided(False, f"expected: {refused.rule}; got: {refused.got}")
    readers = readers_of(config, name)
    if not readers:
        return Decided(False, "no query reads it")
    if wanted == "once" or began is not None:
        why = "as it says" if wanted == "once" else "as when its readers' checkpoints were made"
        return Decided(wanted == "once" or began is True, why)
    seen = look(tuple_by_tuple(query_of(config, name).plan))
    if seen is None:
        return Decided(False, "nothing is known yet of the rows that pass")
    target_s = config.classes[_class_of(config, readers)].target_s
    each = len(readers) * seen.rows_per_s
    once = seen.rows_per_s * (1 + seen.fraction * (WRITING + len(readers)))
    once += MICRO_BATCH_ROWS * BATCHES_PER_TARGET / target_s
    words = (
        f"{100 * seen.fraction:.0f} % of {seen.rows_per_s:,.0f} rows/s pass, {len(readers)} queries read them"
    )
    return Decided(once < each, f"{words}: as reading {once:,.0f} rows/s once, {each:,.0f} in each")


def _class_of(config: PipelineConfig, readers: Sequence[str]) -> str:
    """The highest class of a view's readers: no class waits for a lower one."""
    return max((config.queries[r].cls for r in readers), key=lambda cls: config.classes[cls].priority)


def _refusal(config: PipelineConfig, name: str) -> CqlError | None:
    """The reason why a view cannot be a stream of the log; `None` if it can."""
    query = query_of(config, name)
    try:
        plan = tuple_by_tuple(query.plan)
    except CqlError as error:
        return error
    time = config.streams[stream_of(plan)].event_time
    if time is None or event_time(config.streams, query) is not None:
        return None
    return CqlError(
        "a view that is computed once shows the event time of its stream, unchanged",
        f"view {name} without {time}",
        f"select {time} too",
    )


def event_time(streams: Mapping[str, StreamConfig], query: Query) -> str | None:
    """The view's name for the event time of its stream; `None` if the view does not show it."""
    plan = tuple_by_tuple(query.plan)
    stream = streams[stream_of(plan)]
    names = list(stream.columns or ())
    for name, column in zip(query.names, plan.columns, strict=True):
        at = _origin(plan, column.name)
        if at is not None and names[at] == stream.event_time:
            return name
    return None


def _origin(plan: Plan, column: str) -> int | None:
    """The column of its stream that a column is; `None` for a column that is computed."""
    if isinstance(plan, Scan):
        return [each.name for each in plan.columns].index(column)
    if isinstance(plan, Map):
        item = plan.items[[each.name for each in plan.columns].index(column)]
        if not isinstance(item, exp.Column):
            return None
        column = item.name
    return _origin(plan.inputs[0], column)


def with_streams(config: PipelineConfig, once: Sequence[str]) -> PipelineConfig:
    """The same pipeline with these views as streams of the log, each written by a query of its own."""
    streams: dict[str, Any] = dict(config.streams)
    queries: dict[str, Any] = {}
    for name in once:
        query = query_of(config, name)
        plan = tuple_by_tuple(query.plan)
        base = config.streams[stream_of(plan)]
        types = {n: column.type.lower() for n, column in zip(query.names, plan.columns, strict=True)}
        streams[name] = {
            "schema": types,
            "event_time": event_time(config.streams, query),
            "lateness": base.lateness_s,
            "fsync": base.fsync,
        }
        queries[name] = {
            "class": _class_of(config, readers_of(config, name)),
            "cql": config.views[name].cql,
            "answers": "rows",
            "sink": {"kind": "log", "stream": name},
        }
    left = {name: view for name, view in config.views.items() if name not in once}
    parts = {"streams": streams, "queries": {**queries, **config.queries}, "views": left}
    values = {name: getattr(config, name) for name in type(config).model_fields}
    return type(config).model_validate({**values, **parts})
