"""Operators of the engine, most of which keep state between steps: windows, joins, streams of changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.cql.engine.bag import (
    ALWAYS,
    NEVER,
    Changes,
    Ints,
    codes,
    concat,
    in_order,
    intervals,
    net,
    pairs,
    places_in_runs,
    starts,
)
from penstock.cql.engine.vector import column_of, is_true
from penstock.cql.meaning.plan import Filter, Join, Map, Window, WindowKind


class Node(Protocol):
    """An operator of the engine."""

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        """Changes of the output before an instant, from changes of the inputs before it."""
        ...

    def save(self) -> list[pa.Table]:
        """The state that the operator keeps between steps."""
        ...

    def load(self, tables: Sequence[pa.Table]) -> None:
        """Goes on from the state that `save` gave."""
        ...


class Stateless:
    """An operator without state."""

    def save(self) -> list[pa.Table]:
        return []

    def load(self, tables: Sequence[pa.Table]) -> None:
        pass


class MapNode(Stateless):
    def __init__(self, plan: Map) -> None:
        self._plan = plan

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        rows, columns = inputs[0].rows, self._plan.columns
        made = [
            column_of(item, rows, column.type) for item, column in zip(self._plan.items, columns, strict=True)
        ]
        return inputs[0].with_rows(pa.table(dict(zip([c.name for c in columns], made, strict=True))))


class FilterNode(Stateless):
    def __init__(self, plan: Filter) -> None:
        self._plan = plan

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        return inputs[0].take(np.asarray(is_true(self._plan.condition, inputs[0].rows), dtype=np.bool_))


class UnionNode(Stateless):
    def __init__(self, schema: pa.Schema, streams: bool) -> None:
        self._schema, self._streams = schema, streams

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        names = self._schema.names
        both = concat([each.with_rows(each.rows.rename_columns(names).cast(self._schema)) for each in inputs])
        return in_order(both) if self._streams else both


class TimeWindowNode:
    """NOW, RANGE and UNBOUNDED over a stream: when a tuple comes, it is known when the tuple leaves.

    Tuples that leave after the step wait in the state.
    """

    def __init__(self, window: Window, schema: pa.Schema) -> None:
        self._window, self._waiting = window, Changes.none(schema)

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        changes = inputs[0]
        start, end = lifetime(self._window, changes.at)
        parts = [self._waiting, Changes.of(changes.rows, start, 1)]
        if end is not None:
            parts.append(Changes.of(changes.rows, end, -1))
        due, self._waiting = concat(parts).until(until)
        return due

    def due(self) -> int | None:
        """When the next tuple leaves, or comes with the window's slide."""
        return int(self._waiting.at.min()) if len(self._waiting) else None

    def save(self) -> list[pa.Table]:
        return [self._waiting.to_table()]

    def load(self, tables: Sequence[pa.Table]) -> None:
        self._waiting = Changes.from_table(tables[0])


def lifetime(window: Window, at: Ints) -> tuple[Ints, Ints | None]:
    """When tuples of these instants come into a time window, and leave it; `None` if they never leave."""
    if window.kind is WindowKind.UNBOUNDED:
        return at, None
    if window.slide is None:
        return at, at + window.size
    return -(-at // window.slide) * window.slide, -(-(at + window.size) // window.slide) * window.slide


class RowsWindowNode:
    """ROWS and PARTITION: a tuple leaves when enough newer tuples of its partition have come."""

    def __init__(self, window: Window, schema: pa.Schema) -> None:
        self._size, self._slide, self._keys = window.size, window.slide or 1, window.keys
        self._kept = Changes.none(schema)
        """Tuples that are in the window or will be, in order; `sign` is the number in the partition."""

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        changes = inputs[0]
        if not len(changes):
            return changes
        both = concat([self._kept, changes])
        code = codes(both.rows, self._keys)
        order = np.argsort(code, kind="stable").astype(np.int64)
        kept = len(self._kept)
        first = starts(code[order])
        sizes = np.diff(np.append(first, len(order)))
        # kept tuples of a partition come first in its run, and are numbered already
        before = np.where(order[first] < kept, both.sign[order[first]], 1)
        number = np.repeat(before, sizes) + places_in_runs(first, len(order))
        most = np.repeat(before + sizes - 1, sizes)
        last = np.repeat(first + sizes - 1, sizes)
        done = most - new_in_run(order, first, sizes, kept)  # numbers that earlier steps have dealt with
        slide, size = self._slide, self._size
        comes = -(-number // slide) * slide
        goes = -(-(number + size) // slide) * slide
        never = number <= comes - size  # the window jumps over it

        def instants(boundary: Ints) -> Ints:
            return both.at[order[np.clip(last - (most - boundary), 0, len(order) - 1)]]

        in_now = ~never & (comes <= most) & (comes > done)
        out_now = ~never & (goes <= most) & (goes > done)
        gained = Changes.of(both.rows.take(pa.array(order[in_now])), instants(comes)[in_now], 1)
        lost = Changes.of(both.rows.take(pa.array(order[out_now])), instants(goes)[out_now], -1)
        stay = goes > most  # the newest tuple always stays, so that numbers go on
        places = order[stay]
        self._kept = Changes(both.rows.take(pa.array(places)), both.at[places], number[stay])
        return concat([gained, lost])

    def save(self) -> list[pa.Table]:
        return [self._kept.to_table()]

    def load(self, tables: Sequence[pa.Table]) -> None:
        self._kept = Changes.from_table(tables[0])


def new_in_run(order: Ints, first: Ints, sizes: Ints, kept: int) -> Ints:
    """For each place of sorted runs, how many tuples of its run are new."""
    new = (order >= kept).astype(np.int64)
    return np.repeat(np.add.reduceat(new, first), sizes)


class JoinNode:
    """Pairs of tuples, as long as both tuples are there."""

    def __init__(self, plan: Join, left: pa.Schema, right: pa.Schema) -> None:
        self._plan, self._live = plan, [left.empty_table(), right.empty_table()]

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        plan = self._plan
        left, right = (intervals(live, each) for live, each in zip(self._live, inputs, strict=True))
        self._live = [left.live, right.live]
        left_code, right_code = self._codes(left.rows, right.rows)
        parts = []
        for ours, theirs in pairs(left_code, right_code):
            start = np.maximum(left.start[ours], right.start[theirs])
            end = np.minimum(left.end[ours], right.end[theirs])
            both = (start < end) & ((start > ALWAYS) | (end < NEVER))
            mine, other, start, end = ours[both], theirs[both], start[both], end[both]
            rows = side_by_side(left.rows.take(pa.array(mine)), right.rows.take(pa.array(other)))
            if plan.condition is not None:
                good = np.asarray(is_true(plan.condition, rows), dtype=np.bool_)
                rows, start, end = rows.filter(pa.array(good)), start[good], end[good]
            enters, leaves = start > ALWAYS, end < NEVER
            parts.append(Changes.of(rows.filter(pa.array(enters)), start[enters], 1))
            parts.append(Changes.of(rows.filter(pa.array(leaves)), end[leaves], -1))
        schema = side_by_side(left.rows.slice(0, 0), right.rows.slice(0, 0)).schema
        return concat([Changes.none(schema), *parts])

    def _codes(self, left: pa.Table, right: pa.Table) -> tuple[Ints, Ints]:
        """Numbers of rows: equal for rows of both sides with equal keys; rows with a NULL match none."""
        if not self._plan.equal:
            return np.zeros(left.num_rows, np.int64), np.zeros(right.num_rows, np.int64)
        names = [f"k{i}" for i in range(len(self._plan.equal))]
        keys = [
            left.select([a for a, _ in self._plan.equal]).rename_columns(names),
            right.select([b for _, b in self._plan.equal]).rename_columns(names),
        ]
        keys[1] = keys[1].cast(
            pa.schema(
                [
                    pa.field(f.name, _common(f.type, g.type))
                    for f, g in zip(keys[0].schema, keys[1].schema, strict=True)
                ]
            )
        )
        keys[0] = keys[0].cast(keys[1].schema)
        code = codes(pa.concat_tables(keys), names)
        missing = [np.any([np.asarray(key.column(name).is_null()) for name in names], axis=0) for key in keys]
        left_code, right_code = code[: left.num_rows], code[left.num_rows :]
        return np.where(missing[0], -1, left_code), np.where(missing[1], -2, right_code)

    def save(self) -> list[pa.Table]:
        return self._live

    def load(self, tables: Sequence[pa.Table]) -> None:
        self._live = list(tables)


def _common(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right:
        return left
    whole = pa.types.is_integer(left) and pa.types.is_integer(right)
    return pa.int64() if whole else pa.float64()


def side_by_side(left: pa.Table, right: pa.Table) -> pa.Table:
    columns = [*left.columns, *right.columns]
    return pa.table(columns, names=[*left.column_names, *right.column_names])


class ToStreamNode:
    """ISTREAM, DSTREAM and RSTREAM. Elements of one instant are in the order of their values."""

    def __init__(self, kind: str, schema: pa.Schema) -> None:
        self._kind, self._live = kind, schema.empty_table()

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        changed = net(inputs[0])
        if self._kind != "RSTREAM":
            wanted = changed.take(changed.sign > 0 if self._kind == "ISTREAM" else changed.sign < 0)
            return in_order(Changes.of(wanted.rows, wanted.at, 1))
        there = intervals(self._live, changed)
        self._live = there.live
        instants = np.unique(changed.at)
        none = np.zeros(len(instants), np.int64)
        parts = [Changes.none(self._live.schema)]
        for when, row in pairs(none, np.zeros(there.rows.num_rows, np.int64)):
            good = (there.start[row] <= instants[when]) & (instants[when] < there.end[row])
            parts.append(Changes.of(there.rows.take(pa.array(row[good])), instants[when[good]], 1))
        return in_order(concat(parts))

    def save(self) -> list[pa.Table]:
        return [self._live]

    def load(self, tables: Sequence[pa.Table]) -> None:
        self._live = tables[0]
