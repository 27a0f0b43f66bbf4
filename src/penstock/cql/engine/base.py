"""Base relations: what insertions and deletions make of a relation, in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.cql.engine.bag import ALWAYS, Changes, codes, concat, ints, net, starts

_DONE = pa.schema([("done", pa.int64())])


class BaseNode:
    """Keeps the tuples of a base relation.

    Without keys an insertion adds a tuple and a deletion takes away one that equals it. With keys there is at
    most one tuple a key: an insertion replaces it, and a deletion takes it away, whatever else it says. A
    deletion of what is not there changes nothing.

    Args:
        schema: Of its tuples.
        keys: Columns that tell them apart; may be none.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._keys, self._live, self._done = list(keys), schema.empty_table(), ALWAYS

    def on_time(self, new: Changes) -> Changes:
        """What has just come: a change of an instant for which answers were given counts from then on."""
        return Changes(new.rows, np.maximum(new.at, self._done), new.sign)

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        """What insertions and deletions change, which are in order."""
        self._done = max(self._done, until)
        came = inputs[0]
        if not len(came):
            return came
        always = np.full(self._live.num_rows, ALWAYS, np.int64)
        both = concat([Changes.of(self._live, always, 1), came])
        code = codes(both.rows, self._keys or both.rows.column_names)
        order = np.argsort(code, kind="stable").astype(np.int64)  # what was there is first in its run
        made = self._by_key(both, code, order) if self._keys else self._counted(both, code, order)
        return net(made)

    def _counted(self, both: Changes, code: np.ndarray, order: np.ndarray) -> Changes:
        """How many equal tuples there are goes up and down, and never below zero."""
        runs = pd.Series(both.sign[order]).groupby(code[order])
        total = runs.cumsum()
        short = np.minimum(total.groupby(code[order]).cummin().to_numpy(), 0)
        count = total.to_numpy() - short
        first = starts(code[order])
        before = np.append(0, count[:-1])
        before[first] = 0
        effect = count - before
        last = np.append(first[1:], len(order)) - 1
        self._live = both.rows.take(pa.array(np.repeat(order[last], count[last]))).combine_chunks()
        changed = (effect != 0) & (both.at[order] > ALWAYS)
        places = order[changed]
        return Changes(both.rows.take(pa.array(places)), both.at[places], effect[changed])

    def _by_key(self, both: Changes, code: np.ndarray, order: np.ndarray) -> Changes:
        """A change takes back what an insertion before it left, and an insertion gives its tuple."""
        first = starts(code[order])
        follows = np.ones(len(order), np.bool_)
        follows[first] = False
        inserts = both.sign[order] > 0
        new = both.at[order] > ALWAYS
        replaced = np.flatnonzero(new & follows & np.append(False, inserts[:-1]))
        given = order[new & inserts]
        last = np.append(first[1:], len(order)) - 1
        self._live = both.rows.take(pa.array(order[last[inserts[last]]])).combine_chunks()
        gone = both.rows.take(pa.array(order[replaced - 1]))
        return concat(
            [
                Changes.of(gone, both.at[order[replaced]], -1),
                Changes.of(both.rows.take(pa.array(given)), both.at[given], 1),
            ]
        )

    def save(self) -> list[pa.Table]:
        return [self._live, pa.table([pa.array([self._done])], schema=_DONE)]

    def load(self, tables: Sequence[pa.Table]) -> None:
        self._live, self._done = tables[0], int(ints(tables[1].column("done"))[0])
