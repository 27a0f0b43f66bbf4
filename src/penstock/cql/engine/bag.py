"""Changes of a relation: tuples that come and go at instants, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
INSTANT, SIGN = "_t", "_d"
"""Names of the columns with instants and signs in a table of changes."""
MOST_PAIRS = 2_000_000
"""About the most pairs of tuples that are examined at once."""
NEVER = np.iinfo(np.int64).max
ALWAYS = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Changes:
    """Tuples with an instant and a sign each: +1 comes, -1 goes.

    Attributes:
        rows: The tuples.
        at: Instants of the tuples, in microseconds.
        sign: +1 or -1.
    """

    rows: pa.Table
    at: Ints
    sign: Ints

    def __len__(self) -> int:
        return len(self.at)

    @staticmethod
    def none(schema: pa.Schema) -> Changes:
        return Changes(schema.empty_table(), np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def of(rows: pa.Table, at: Ints, sign: int) -> Changes:
        """Changes that all have one sign."""
        return Changes(rows, at, np.full(len(at), sign, np.int64))

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Changes:
        """The changes at these indices, or where a mask is true."""
        index = np.flatnonzero(index) if index.dtype == np.bool_ else index
        return Changes(self.rows.take(pa.array(index)), self.at[index], self.sign[index])

    def until(self, instant: int) -> tuple[Changes, Changes]:
        """The changes before an instant, and the other changes."""
        due = self.at < instant
        return (self, self.take(~due)) if due.all() else (self.take(due), self.take(~due))

    def with_rows(self, rows: pa.Table) -> Changes:
        return Changes(rows, self.at, self.sign)

    def to_table(self) -> pa.Table:
        table = self.rows.append_column(INSTANT, pa.array(self.at))
        return table.append_column(SIGN, pa.array(self.sign))

    @staticmethod
    def from_table(table: pa.Table) -> Changes:
        rows = table.drop_columns([INSTANT, SIGN])
        return Changes(rows, ints(table.column(INSTANT)), ints(table.column(SIGN)))


def ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def concat(parts: Sequence[Changes]) -> Changes:
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    at = np.concatenate([part.at for part in parts])
    return Changes(rows, at, np.concatenate([part.sign for part in parts]))


def codes(rows: pa.Table, names: Sequence[str]) -> Ints:
    """A number for each row: the same for rows that are equal in these columns, NULL equal to NULL."""
    made = np.zeros(rows.num_rows, np.int64)
    for name in names:
        made = dense(made * (rows.num_rows + 1) + _codes_of(rows.column(name)))
    return made


def _codes_of(column: pa.ChunkedArray) -> Ints:
    if pa.types.is_list(column.type):  # a result of TOP: as text, which suffices for equality
        texts = [
            None if value is None else str([_zero(each) for each in value]) for value in column.to_pylist()
        ]
        column = pa.chunked_array([pa.array(texts, pa.string())])
    elif pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 is 0.0
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _zero(value: object) -> object:
    return value + 0.0 if isinstance(value, float) else value


def dense(values: Ints) -> Ints:
    """Numbers from zero on in the same order."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def ranks(column: pa.ChunkedArray) -> Ints:
    """The rank of each value; equal values have equal ranks, and NULL ranks before all values."""
    if len(column) == 0:
        return np.empty(0, np.int64)
    # NULLs are ranked last, the default: versions of pyarrow differ in the option that changes it
    ranked = pc.rank(column.combine_chunks(), sort_keys="ascending", tiebreaker="dense")
    places = np.asarray(ranked.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.where(np.asarray(column.is_null()), 0, places)


def in_order(changes: Changes) -> Changes:
    """Changes sorted by instant, then by value: the order of a derived stream."""
    keys = [ranks_or_codes(changes.rows.column(name)) for name in reversed(changes.rows.column_names)]
    return changes.take(np.lexsort([*keys, changes.at]).astype(np.int64))


def ranks_or_codes(column: pa.ChunkedArray) -> Ints:
    return _codes_of(column) if pa.types.is_list(column.type) else ranks(column)


def net(changes: Changes) -> Changes:
    """Changes without those of equal tuples at one instant that cancel each other."""
    if not len(changes):
        return changes
    code = codes(changes.rows, changes.rows.column_names)
    order = np.lexsort((code, changes.at))
    first = starts(changes.at[order], code[order])
    left = np.add.reduceat(changes.sign[order], first)
    places = np.repeat(order[first], np.abs(left))
    return Changes(
        changes.rows.take(pa.array(places)), changes.at[places], np.repeat(np.sign(left), np.abs(left))
    )


def starts(*sorted_keys: Ints) -> Ints:
    """Where runs of equal keys begin, in arrays that are sorted by them."""
    size = len(sorted_keys[0])
    if size == 0:
        return np.empty(0, np.int64)
    new = np.zeros(size, np.bool_)
    new[0] = True
    for key in sorted_keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new).astype(np.int64)


def places_in_runs(first: Ints, size: int) -> Ints:
    """For each element, how many elements of its run come before it."""
    lengths = np.diff(np.append(first, size))
    return np.arange(size, dtype=np.int64) - np.repeat(first, lengths)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Tuples with the instants at which they come and at which they leave.

    A tuple that came before the step has `ALWAYS`; a tuple that is still there after it has `NEVER`.
    """

    rows: pa.Table
    start: Ints
    end: Ints

    @property
    def live(self) -> pa.Table:
        """The tuples that are there after the step."""
        return self.rows.take(pa.array(np.flatnonzero(self.end == NEVER)))


def intervals(live: pa.Table, changes: Changes) -> Intervals:
    """Pairs tuples that come with tuples that leave: of equal tuples, the first to come leaves first."""
    comes, goes = changes.take(changes.sign > 0), changes.take(changes.sign < 0)
    rows = pa.concat_tables([live, comes.rows]).combine_chunks()
    start = np.concatenate([np.full(live.num_rows, ALWAYS, np.int64), comes.at])
    both = codes(pa.concat_tables([rows, goes.rows]), rows.column_names)
    code, gone = both[: rows.num_rows], both[rows.num_rows :]
    end = np.full(rows.num_rows, NEVER, np.int64)
    order, going = np.lexsort((start, code)), np.lexsort((goes.at, gone))
    nth = places_in_runs(starts(code[order]), len(order))
    nth_gone = places_in_runs(starts(gone[going]), len(going))
    wide = max(len(order), len(going)) + 1
    where = np.searchsorted(code[order] * wide + nth, gone[going] * wide + nth_gone)
    end[order[where]] = goes.at[going]
    return Intervals(rows, start, end)


def pairs(left: Ints, right: Ints, most: int = MOST_PAIRS) -> Iterator[tuple[Ints, Ints]]:
    """Indices of all pairs with equal codes, in parts of about `most` pairs."""
    order = np.argsort(right, kind="stable").astype(np.int64)
    sorted_right = right[order]
    low, high = np.searchsorted(sorted_right, left, "left"), np.searchsorted(sorted_right, left, "right")
    counts = (high - low).astype(np.int64)
    ends = np.cumsum(counts)
    first = 0
    while first < len(left):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + most, "right")))
        count = counts[first:last]
        mine = np.repeat(np.arange(first, last, dtype=np.int64), count)
        within = places_in_runs((np.cumsum(count) - count).astype(np.int64)[count > 0], int(count.sum()))
        yield mine, order[np.repeat(low[first:last], count) + within]
        first = last
