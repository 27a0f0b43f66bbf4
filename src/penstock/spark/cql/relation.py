"""The exact answer of a query on Spark, as a stream of changes: tuples that come (+1) and leave (-1).

Spark itself drops and changes rows, as far as that needs no state. The rest of the plan runs in the engine,
inside Spark's state store: one step a micro-batch, up to the watermark, in as many buckets as the plan can be
spread over. Rows after the watermark wait in the state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.analysis.windowing import SIC
from penstock.cql.engine.bag import INSTANT, SIGN
from penstock.cql.engine.run import ORDER, Engine
from penstock.cql.meaning.lower import is_known_at_once, leaves_of, lowered, spread_by
from penstock.cql.meaning.plan import Base, Column, Plan, Query, Window, Windowed, WindowKind
from penstock.spark.cql.carry import (
    BUCKET,
    LEAF,
    answer_schema,
    carried_form,
    null_bits,
    null_names,
    packed,
    received,
    sent,
    unpacked,
)
from penstock.spark.cql.feeds import Feeds, leaf_rows, scanned
from penstock.spark.cql.members import Members
from penstock.spark.cql.standing import Standing, longest_us
from penstock.spark.cql.text import TIME
from penstock.streams.protocol import KEPT

STATE = "tables BINARY"
NEVER_LATE = "TIMESTAMP '2262-01-01 00:00:00'"
"""Spark's time for changes of relations for which no answer waits: such changes count when they come. Pandas
has hardly any later time."""
BUCKETS = 8
"""Number of parts over which the state is spread, if it can be. It is the same on all machines: a run that
continues on another machine must find the state of a key in the same part."""
Step = Callable[[tuple[Any, ...], Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]


def changes_of(query: Query, feeds: Feeds, buckets: int = BUCKETS, ahead_us: int = 0) -> DataFrame:
    """A query's changes: its columns, `_t` (microseconds) and `_d` (+1 comes, -1 leaves).

    If the feeds say which fraction of their rows was admitted, the last column is `sic`.

    Args:
        query: The query to compute.
        feeds: Gives the streams.
        buckets: Number of parts over which the state is spread, if it can be. It must not change for a
            checkpoint.
        ahead_us: How far the streams' times are ahead of instants: Spark takes rows of the first moment of
            1970 for late.
    """
    plan = lowered(query.plan)
    if is_known_at_once(plan):
        changes = _known_at_once(plan, feeds, ahead_us)
    else:
        changes = _in_engine(plan, feeds, buckets, ahead_us)
    names = [
        F.col(column.name).alias(name) for column, name in zip(query.plan.columns, query.names, strict=True)
    ]
    sic = [F.col(KEPT).alias(SIC)] if KEPT in changes.columns else []
    return changes.select(*names, INSTANT, SIGN, *sic)


# -- without state ----------------------------------------------------------------------------------


def _known_at_once(plan: Plan, feeds: Feeds, ahead_us: int) -> DataFrame:
    """Changes of a plan that is a stream's rows, or one time window over them."""
    if not isinstance(plan, Windowed):  # a stream, whose elements come and stay
        plan = Windowed(plan.columns, plan, Window(WindowKind.UNBOUNDED))
    rows = leaf_rows(plan.input, feeds, Members())
    window, t = plan.window, f"(unix_micros({TIME}) - {ahead_us}L)"
    comes, goes = t, f"{t} + {window.size}L"
    if window.slide is not None:
        comes, goes = (f"({text}) + pmod(-({text}), {window.slide}L)" for text in (comes, goes))
        rows = rows.where(f"{comes} < {goes}")  # a window whose slide is longer than itself skips some rows
    made = [f"struct({comes} AS t, 1L AS d)"]
    if window.kind is not WindowKind.UNBOUNDED:
        made.append(f"struct({goes} AS t, -1L AS d)")
    each = rows.withColumn("_change", F.expr(f"explode(array({', '.join(made)}))"))
    columns = [F.col(column.name) for column in plan.columns]
    kept = [KEPT] if KEPT in rows.columns else []
    return each.select(*columns, F.col("_change.t").alias(INSTANT), F.col("_change.d").alias(SIGN), *kept)


# -- with state -------------------------------------------------------------------------------------


def _in_engine(plan: Plan, feeds: Feeds, buckets: int, ahead_us: int) -> DataFrame:
    leaves = leaves_of(plan)
    spread = spread_by(plan, leaves)
    every = [column for leaf in leaves for column in leaf.columns]
    width = max(len(leaf.columns) for leaf in leaves)
    streams: list[DataFrame] = []
    relations: list[DataFrame] = []
    for i, leaf in enumerate(leaves):
        by = None if spread is None else spread[i]
        late = True
        if isinstance(leaf, Base):
            feed = feeds(leaf.relation)
            part, late = scanned(leaf, feed), feed.lateness_ms is not None
        else:
            part = leaf_rows(leaf, feeds, Members())
        part = _to_carry(part, i, leaf, every, width, by, buckets)
        part = part.withColumn(INSTANT, F.expr(f"unix_micros({TIME}) - {ahead_us}L"))
        (relations if isinstance(leaf, Base) else streams).append(
            part if late else part.withColumn(TIME, F.expr(NEVER_LATE))
        )
    rows = _united(streams, relations)
    schema = answer_schema(plan) + (f", {KEPT} DOUBLE" if KEPT in rows.columns else "")
    return rows.groupBy(BUCKET).applyInPandasWithState(
        engine_step(plan, leaves, ahead_us, KEPT in rows.columns), schema, STATE, "append", "EventTimeTimeout"
    )


def _united(streams: Sequence[DataFrame], relations: Sequence[DataFrame]) -> DataFrame:
    """The rows of all leaves. Changes of relations have no admitted fraction, because nobody sheds them."""
    admitted = bool(streams) and all(KEPT in part.columns for part in streams)
    parts = [part if admitted else part.drop(KEPT) for part in streams]
    if relations:
        parts = [part.withColumn(SIGN, F.lit(1).cast("bigint")) for part in parts]
    nothing = {KEPT: F.lit(None).cast("double")} if admitted else {}
    parts += [part.withColumns(nothing) if nothing else part for part in relations]
    rows = parts[0]  # a stream, if there is one: the first part of a union decides the watermark's column
    for part in parts[1:]:
        rows = rows.unionByName(part)
    return rows


def _to_carry(
    rows: DataFrame,
    number: int,
    leaf: Plan,
    every: Sequence[Column],
    width: int,
    by: str | None,
    buckets: int,
) -> DataFrame:
    """A leaf's tuples in the columns that all leaves share."""
    mine = {column.name for column in leaf.columns}
    made = []
    for column in every:
        text, kind = carried_form(column)
        text = text.format(f"`{column.name}`" if column.name in mine else f"CAST(NULL AS {column.type})")
        made.append(F.expr(f"CAST({text} AS {kind})").alias(column.name))
    bits = null_bits([f"`{column.name}`" for column in leaf.columns])
    names = null_names(width)
    nulls = [F.expr(bits[i] if i < len(bits) else "0L").alias(name) for i, name in enumerate(names)]
    bucket = "0" if by is None else f"pmod(hash(`{by}`), {buckets})"
    return rows.select(
        F.lit(number).alias(LEAF),
        F.expr(bucket).alias(BUCKET),
        TIME,
        ORDER,
        *nulls,
        *made,
        *(name for name in (SIGN, KEPT) if name in rows.columns),
    )


def engine_step(plan: Plan, leaves: Sequence[Plan], ahead_us: int, kept: bool = False) -> Step:
    """The function that Spark calls for each bucket with new rows, or with an expired timeout.

    Args:
        plan: The plan to compute.
        leaves: The leaves that are fed with rows.
        ahead_us: How far the streams' times are ahead of instants.
        kept: Whether rows have the column `_kept`, and changes therefore `sic`.
    """
    length_us = longest_us(plan)

    def step(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        # PySpark concatenates the frames of several buckets, and some columns may have NULLs alone
        warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation", FutureWarning)
        engine, standing = Engine(plan, leaves), Standing(len(leaves), length_us)
        if state.exists:
            tables = list(unpacked(state.get[0]))
            engine.load(tables)
            standing.load(tables)
        # Spark drops rows at the watermark or before it as late, so all rows up to it have come
        until = state.getCurrentWatermarkMs() * 1000 + 1 - ahead_us
        frames = list(frames)
        changed = engine.step(received(frames, leaves), until)
        given = sent(changed)
        if kept:
            for frame in frames:
                shed = frame[frame[KEPT].notna()]  # changes of relations have no `_kept`
                standing.add(*(shed[name].to_numpy() for name in (LEAF, INSTANT, KEPT)))
            given[KEPT] = standing.sic(changed.at)
            standing.forget(until)
        state.update((packed([*engine.save(), *([standing.save()] if kept else [])]),))
        if (due := engine.due()) is not None:
            state.setTimeoutTimestamp(max(1, -(-(due + ahead_us) // 1000) - 1))
        if len(given):
            yield given

    return step
