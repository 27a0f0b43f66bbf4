"""GROUP BY and DISTINCT: a row for each group, which changes when its tuples do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cql.engine.bag import ALWAYS, Changes, Ints, codes, concat, intervals, net, pairs, ranks, starts
from penstock.cql.engine.sums import LINEAR, contributions, filled, result, shifted, sum_names
from penstock.cql.engine.vector import arrow_type
from penstock.cql.meaning.plan import Aggregate, Aggregation

TUPLES = "_n"


class Points:
    """Instants at which groups change; each point has a group and the group's state from then on."""

    def __init__(self, code: Ints, at: Ints, order: Ints, last: Ints) -> None:
        self.order, self.last = order, last
        """The order of sorted changes, and the place of each point's last change in that order."""
        self.code, self.at = code[order][last], at[order][last]

    def __len__(self) -> int:
        return len(self.code)


class AggregateNode:
    """Keeps running sums for each group, and the tuples themselves if an aggregate orders them."""

    def __init__(self, plan: Aggregate, below: pa.Schema, only_grows: bool) -> None:
        self._plan, self._only_grows = plan, only_grows
        self._names = [TUPLES, *dict.fromkeys(n for a in self._linear() for n in sum_names(a))]
        self._shifted = list(dict.fromkeys(name for each in self._linear() for name in shifted(each)))
        self._schema = pa.schema([(column.name, arrow_type(column.type)) for column in plan.columns])
        self._ordered = [each for each in plan.aggregates if each.function not in LINEAR]
        kept = list(dict.fromkeys((*plan.keys, *(a for each in self._ordered for a in each.arguments))))
        self._live = below.empty_table().select(kept if self._ordered else [])
        self._answer = self._schema.empty_table()
        """The row of each group, in the order of `_sums`."""
        self._sums = self._empty_sums(below)

    def _linear(self) -> list[Aggregation]:
        return [each for each in self._plan.aggregates if each.function in LINEAR]

    def _empty_sums(self, below: pa.Schema) -> pa.Table:
        def kind(name: str) -> pa.DataType:
            whole = name == TUPLES or name.startswith("n|")
            if name.startswith("s|"):
                whole = pa.types.is_integer(below.field(name.split("|")[1]).type)
            return pa.int64() if whole else pa.float64()

        fields = [(name, kind(name)) for name in self._names]
        shifts = [(f"shift|{name}", pa.float64()) for name in self._shifted]
        return pa.schema([*fields, *shifts]).empty_table()

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        changes = inputs[0]
        if not len(changes):
            return Changes.none(self._schema)
        groups, rows = self._answer.num_rows, changes.rows
        keys = pa.concat_tables(
            [self._answer.select(list(self._plan.keys)), rows.select(list(self._plan.keys))]
        )
        code = codes(keys, self._plan.keys) if self._plan.keys else np.zeros(groups + len(changes), np.int64)
        at = np.concatenate([np.full(groups, ALWAYS, np.int64), changes.at])
        order = np.lexsort((at, code)).astype(np.int64)
        ends = np.append(starts(code[order], at[order])[1:], len(order)) - 1
        points = Points(code, at, order, ends)  # points at ALWAYS are the old state
        sums, shifts = self._running(changes, code, order)
        at_points = {name: values[ends] for name, values in sums.items()}
        tuples = at_points[TUPLES].astype(np.int64)
        answers = self._answers(points, keys, at_points, tuples, changes, code)
        changed = self._changed(points, answers, tuples)
        self._keep(points, answers, at_points, shifts, tuples)
        return changed

    def _running(
        self, changes: Changes, code: Ints, order: Ints
    ) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.float64]]]:
        """The running sums of each group after each change, in order; and the shifts by code."""
        groups = self._answer.num_rows
        shifts = {name: self._shifts(name, changes, code, order) for name in self._shifted}
        of_changes = {name: shift[code[groups:]] for name, shift in shifts.items()}
        made = {}
        for name in self._names:
            new = (
                changes.sign
                if name == TUPLES
                else contributions(name, changes.rows, changes.sign, of_changes)
            )
            before = filled(self._sums.column(name))
            both = np.concatenate([before, new.astype(before.dtype) if groups else new])
            made[name] = pd.Series(both[order]).groupby(code[order]).cumsum().to_numpy()
        return made, shifts

    def _shifts(self, name: str, changes: Changes, code: Ints, order: Ints) -> NDArray[np.float64]:
        """By code, the value that is subtracted from a column's values: the first value of the group."""
        kept, column = filled(self._sums.column(f"shift|{name}")), changes.rows.column(name)
        values = np.concatenate([kept, filled(column).astype(np.float64)])
        there = np.concatenate([np.ones(len(kept), np.bool_), np.asarray(column.is_valid())])
        places = order[there[order]]
        shifts = np.zeros(int(code.max()) + 1)
        first = starts(code[places])
        shifts[code[places][first]] = values[places][first]
        return shifts

    def _answers(
        self,
        points: Points,
        keys: pa.Table,
        sums: Mapping[str, NDArray[np.generic]],
        tuples: Ints,
        changes: Changes,
        code: Ints,
    ) -> pa.Table:
        """The row of each point's group from that point on."""
        columns = [keys.column(name).take(pa.array(points.order[points.last])) for name in self._plan.keys]
        ordered = self._by_order(points, changes, code) if self._ordered else {}
        for each, column in zip(
            self._plan.aggregates, self._plan.columns[len(self._plan.keys) :], strict=True
        ):
            kind = arrow_type(column.type)
            made = ordered[each] if each in ordered else result(each, tuples, sums, kind)  # type: ignore[arg-type]
            columns.append(made.cast(kind))
        return pa.table(columns, schema=self._schema)

    def _by_order(self, points: Points, changes: Changes, code: Ints) -> dict[Aggregation, pa.Array]:
        """MIN, MAX and TOP at each point, from the tuples that are there at that point."""
        names = self._live.column_names
        there = intervals(self._live, Changes(changes.rows.select(names), changes.at, changes.sign))
        self._live = there.live
        keys = list(self._plan.keys)
        same = np.zeros(there.rows.num_rows, np.int64)
        if keys:
            tables = [self._answer.select(keys), changes.rows.select(keys), there.rows.select(keys)]
            groups_of = codes(pa.concat_tables(tables), keys)
            same = _renumbered(groups_of[: len(code)], code, groups_of[len(code) :])
        made = {}
        for each in self._ordered:
            by = there.rows.column(each.arguments[-1])
            places = np.flatnonzero(_all_valid(there.rows, each.arguments))
            rank = ranks(by)[places]
            part = (same[places], there.start[places], there.end[places], rank)
            if each.function == "TOP":
                made[each] = self._top(each, points, part, there.rows.column(each.arguments[0]), places)
                continue
            sign = 1 if each.function == "MAX" else -1
            best = extreme(*part[:3], sign * rank, points.code, points.at)
            index = pa.array(np.where(best < 0, 0, places[best] if len(places) else 0), mask=best < 0)
            made[each] = by.combine_chunks().take(index)
        if self._only_grows:
            self._prune()
        return made

    def _top(
        self,
        each: Aggregation,
        points: Points,
        part: tuple[Ints, Ints, Ints, Ints],
        shown: pa.ChunkedArray,
        places: Ints,
    ) -> pa.Array:
        """The values of the k tuples with the largest ranks at each point; equal ranks by value."""
        code, start, end, rank = part
        value_rank = ranks(shown)[places]
        chosen, owners = [], []
        for when, which in pairs(points.code, code):
            good = (start[which] <= points.at[when]) & (points.at[when] < end[which])
            point, row = when[good], which[good]
            order = np.lexsort((-value_rank[row], -rank[row], point))
            point, row = point[order], row[order]
            first = starts(point)
            sizes = np.diff(np.append(first, len(point)))
            nth = np.arange(len(point)) - np.repeat(first, sizes)
            chosen.append(places[row[nth < each.k]])
            owners.append(point[nth < each.k])
        owner = np.concatenate(owners) if owners else np.empty(0, np.int64)
        values = shown.combine_chunks().take(
            pa.array(np.concatenate(chosen) if chosen else np.empty(0, np.int64))
        )
        offsets = np.searchsorted(owner, np.arange(len(points) + 1))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)

    def _prune(self) -> None:
        """Drops tuples that no aggregate shows, if tuples never leave."""
        code = codes(self._live, self._plan.keys)
        keep = np.zeros(self._live.num_rows, np.bool_)
        for each in self._ordered:
            rank = ranks(self._live.column(each.arguments[-1]))
            value = ranks(self._live.column(each.arguments[0]))
            sign = -1 if each.function != "MIN" else 1
            order = np.lexsort((-value, sign * rank, code))
            order = order[_all_valid(self._live, each.arguments)[order]]
            first = starts(code[order])
            sizes = np.diff(np.append(first, len(order)))
            nth = np.arange(len(order)) - np.repeat(first, sizes)
            keep[order[nth < max(each.k, 1)]] = True
        self._live = self._live.filter(pa.array(keep))

    def _changed(self, points: Points, answers: pa.Table, tuples: Ints) -> Changes:
        """The changes of the answer: each point removes its group's old row and adds the new one."""
        old = np.arange(len(points)) - 1
        has_old = np.append(False, points.code[1:] == points.code[:-1])
        new_one = points.at > ALWAYS
        back = np.flatnonzero(new_one & has_old & (tuples[old] > 0))
        forth = np.flatnonzero(new_one & (tuples > 0))
        return net(
            concat(
                [
                    Changes.of(answers.take(pa.array(old[back])), points.at[back], -1),
                    Changes.of(answers.take(pa.array(forth)), points.at[forth], 1),
                ]
            )
        )

    def _keep(
        self,
        points: Points,
        answers: pa.Table,
        sums: Mapping[str, NDArray[np.generic]],
        shifts: Mapping[str, NDArray[np.float64]],
        tuples: Ints,
    ) -> None:
        last = np.append(points.code[1:] != points.code[:-1], True) & (tuples > 0)
        places = pa.array(np.flatnonzero(last))
        self._answer = answers.take(places).combine_chunks()
        columns = {name: pa.array(sums[name]).take(places) for name in self._names}
        columns |= {f"shift|{name}": pa.array(shift[points.code[last]]) for name, shift in shifts.items()}
        self._sums = pa.table(columns).cast(self._sums.schema)

    def save(self) -> list[pa.Table]:
        return [self._answer, self._sums, self._live]

    def load(self, tables: Sequence[pa.Table]) -> None:
        self._answer, self._sums, self._live = tables


def _all_valid(rows: pa.Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """Which rows have no NULL in these columns."""
    return np.all([np.asarray(rows.column(name).is_valid()) for name in names], axis=0)


def _renumbered(known: Ints, wanted: Ints, values: Ints) -> Ints:
    """Codes of one numbering in another, given both for the same rows."""
    table = np.full(int(max(known.max(initial=-1), values.max(initial=-1))) + 1, -1, np.int64)
    table[known] = wanted
    return table[values]


def extreme(code: Ints, start: Ints, end: Ints, rank: Ints, of_code: Ints, of_at: Ints) -> Ints:
    """Index of the largest rank among the tuples of a group that are there at an instant; -1 if none is."""
    order = np.lexsort((end, start, code))
    code, start, end, rank = code[order], start[order], end[order], rank[order]
    if len(order) and not _first_in_first_out(code, end):
        return _extreme_of_pairs(code, start, end, rank, order, of_code, of_at)
    # tuples that are there at an instant are next to each other
    low = _search(code, end, of_code, of_at, "right")
    high = _search(code, start, of_code, of_at, "right")
    best = _range_maximum(rank, low, high)
    return np.where(best < 0, -1, order[best] if len(order) else -1)


def _first_in_first_out(code: Ints, end: Ints) -> bool:
    return bool(np.all((end[1:] >= end[:-1]) | (code[1:] != code[:-1])))


def _search(code: Ints, values: Ints, of_code: Ints, of: Ints, side: str) -> Ints:
    """Where other values would be inserted, in runs of a code with rising values."""
    both = np.concatenate([values, of])
    compact = np.unique(both, return_inverse=True)[1].astype(np.int64)
    wide = int(compact.max(initial=0)) + 2
    keys, wanted = code * wide + compact[: len(values)], of_code * wide + compact[len(values) :]
    return np.searchsorted(keys, wanted, side).astype(np.int64)  # type: ignore[call-overload]


def _range_maximum(rank: Ints, low: Ints, high: Ints) -> Ints:
    """The index of the largest rank in each [low, high); -1 if the range is empty."""
    best = np.arange(len(rank), dtype=np.int64)
    found = np.full(len(low), -1, np.int64)
    length = np.maximum(high - low, 0)
    width = 1
    while width <= len(rank):
        here = (length >= width) & (length < 2 * width)
        first, second = best[low[here]], best[high[here] - width]
        found[here] = np.where(rank[first] >= rank[second], first, second)
        if len(best) <= width:
            break
        left, right = best[:-width], best[width:]
        best = np.where(rank[left] >= rank[right], left, right)
        width *= 2
    return found


def _extreme_of_pairs(
    code: Ints, start: Ints, end: Ints, rank: Ints, order: Ints, of_code: Ints, of_at: Ints
) -> Ints:
    found = np.full(len(of_code), -1, np.int64)
    for when, which in pairs(of_code, code):
        good = (start[which] <= of_at[when]) & (of_at[when] < end[which])
        point, row = when[good], which[good]
        by = np.lexsort((rank[row], point))
        point, row = point[by], row[by]
        last = np.append(point[1:] != point[:-1], True) if len(point) else np.empty(0, np.bool_)
        found[point[last]] = order[row[last]]
    return found
