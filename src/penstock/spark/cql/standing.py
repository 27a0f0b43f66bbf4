"""SIC of changes: which fraction of the rows in the longest window was admitted at each instant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.cql.engine.bag import Ints
from penstock.cql.meaning.plan import Plan, Windowed, WindowKind
from penstock.vocabulary.model import FloatArray

_SCHEMA = pa.schema(
    [("leaf", pa.int64()), ("at", pa.int64()), ("rows", pa.float64()), ("stood_for", pa.float64())]
)

LONG_AGO = np.iinfo(np.int64).min
"""Instant at which old rows are added up if windows have no end: every window then holds them."""


def longest_us(plan: Plan) -> int | None:
    """Longest time for which a row can influence an answer; `None` if there is no limit."""
    longest = 0
    for each in plan.inputs:
        below = longest_us(each)
        if below is None:
            return None
        longest = max(longest, below)
    if not isinstance(plan, Windowed):
        return longest
    if plan.window.kind not in (WindowKind.RANGE, WindowKind.NOW):
        return None
    return longest + plan.window.size + (plan.window.slide or 0)


class Standing:
    """By leaf and instant: the number of admitted rows, and the number of rows they represent.

    Args:
        leaves: Number of leaves.
        length_us: Result of `longest_us`.
    """

    def __init__(self, leaves: int, length_us: int | None) -> None:
        self._leaves, self._length_us = leaves, length_us
        self._table = _SCHEMA.empty_table()

    def add(self, leaf: Ints, at: Ints, kept: FloatArray) -> None:
        """Adds rows that have come; `kept` is the fraction of each row's grant that was kept."""
        if not len(at):
            return
        old = self._table
        leaf = np.concatenate([old["leaf"].to_numpy(), leaf])
        at = np.concatenate([old["at"].to_numpy(), at])
        rows = np.concatenate([old["rows"].to_numpy(), np.ones(len(kept))])
        stood_for = np.concatenate([old["stood_for"].to_numpy(), 1.0 / kept])
        self._fold(leaf, at, rows, stood_for)

    def _fold(self, leaf: Ints, at: Ints, rows: FloatArray, stood_for: FloatArray) -> None:
        keys, place = np.unique(np.stack([leaf, at]), axis=1, return_inverse=True)
        place = place.reshape(-1)
        columns = [keys[0], keys[1], np.bincount(place, rows), np.bincount(place, stood_for)]
        self._table = pa.table([pa.array(c) for c in columns], schema=_SCHEMA)

    def sic(self, at: Ints) -> FloatArray:
        """At each instant, the admitted fraction of the rows since the longest window began.

        With several leaves the mean over the leaves; 1 if there are no rows.
        """
        total, counted = np.zeros(len(at)), np.zeros(len(at))
        for leaf in range(self._leaves):
            mine = self._table.filter(pa.array(self._table["leaf"].to_numpy() == leaf))
            instants = mine["at"].to_numpy()
            last = np.searchsorted(instants, at, side="right")
            first = np.zeros_like(last)
            if self._length_us is not None:
                first = np.searchsorted(instants, at - self._length_us, side="left")
            rows, stood_for = (
                np.concatenate([[0.0], np.cumsum(mine[name].to_numpy())]) for name in ("rows", "stood_for")
            )
            count = rows[last] - rows[first]
            here = last > first
            total[here] += count[here] / (stood_for[last] - stood_for[first])[here]
            counted += here
        return np.where(counted > 0, total / np.maximum(counted, 1.0), 1.0)

    def forget(self, until: int) -> None:
        """Removes or adds up rows that only windows before an instant need."""
        leaf, at = self._table["leaf"].to_numpy(), self._table["at"].to_numpy()
        if self._length_us is not None:
            self._table = self._table.filter(pa.array(at >= until - self._length_us))
        else:
            rows, stood_for = self._table["rows"].to_numpy(), self._table["stood_for"].to_numpy()
            self._fold(leaf, np.where(at < until, LONG_AGO, at), rows, stood_for)

    def save(self) -> pa.Table:
        return self._table

    def load(self, tables: Sequence[pa.Table]) -> None:
        """Restores the table of `save` if it is the last of these tables."""
        if tables and tables[-1].schema.names == _SCHEMA.names:
            self._table = tables[-1]
