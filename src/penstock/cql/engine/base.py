"""Base relations, to which insertions and deletions are applied in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.cql.engine.bag import ALWAYS, Changes, codes, concat, ints, net, starts

_DONE = pa.schema([("done", pa.int64())])


class BaseNode:
    """Keeps the tuples of a base relation.

    Without keys, an insertion adds a tuple and a deletion removes one equal tuple. With keys, there is at
    most one tuple for a key: an insertion replaces it, and a deletion removes it, whatever its other columns
    are. A deletion of a tuple that is not there changes nothing.

    Args:
        schema: Schema of the tuples.
        keys: Columns that identify a tuple; may be none.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._keys, self._live, self._done = list(keys), schema.empty_table(), ALWAYS

    def on_time(self, new: Changes) -> Changes:
        """New changes; a change of an instant for which answers were given already counts from now on."""
        return Changes(new.rows, np.maximum(new.at, self._done), new.sign)

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        """Changes that insertions and deletions, in order, make to the relation."""
        self._done = max(self._done, until)
        changes = inputs[0]
        if not len(changes):
            return changes
        always = np.full(self._live.num_rows, ALWAYS, np.int64)
        both = concat([Changes.of(self._live, always, 1), changes])
        code = codes(both.rows, self._keys or both.rows.column_names)
        order = np.argsort(code, kind="stable").astype(np.int64)  # old tuples come first in their run
        made = self._by_key(both, code, order) if self._keys else self._counted(both, code, order)
        return net(made)

    def _counted(self, both: Changes, code: np.ndarray, order: np.ndarray) -> Changes:
        """Without keys: the number of equal tuples goes up and down, but never below zero."""
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
        """With keys: a change removes the tuple of an earlier insertion, and an insertion adds its tuple."""
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
