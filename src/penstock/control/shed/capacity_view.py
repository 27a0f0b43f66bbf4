"""The demand of a class and its capacity: what waits for each query, and how much of it the turns hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.control.backlog.row_values import Inside
from penstock.control.measure.sic import SicLedger
from penstock.control.schedule.turns import Turn
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning
from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.policies.shedding.base import ShedObservation, WaitingBatches
from penstock.vocabulary.model import FloatArray
from penstock.vocabulary.moment import Moment


@dataclass(frozen=True, slots=True, eq=False)
class QueryBatches:
    """The waiting batches of one query. The shedder keeps or sheds each batch as one.

    Attributes:
        rows: How many rows each batch has.
        sic: The SIC of all rows of each batch together.
        first_s: When the first row of each batch arrived.
        last_s: When the last row of each batch arrived.
    """

    rows: IntArray
    sic: FloatArray
    first_s: FloatArray
    last_s: FloatArray

    def split(self, batch: IntArray, rows: IntArray) -> QueryBatches:
        """Splits these batches into smaller ones.

        Args:
            batch: For each smaller batch, the index of the batch that its rows are taken from.
            rows: How many rows each smaller batch has.
        """
        sic = self.sic[batch] * (rows / np.maximum(1, self.rows[batch]))
        return QueryBatches(rows, sic, self.first_s[batch], self.last_s[batch])

    def in_step(self) -> tuple[QueryBatches, IntArray]:
        """Returns the same batches by arrival, with the same SIC for every row, and the old index of each.

        Of batches with equal SIC a row, a shedder takes the batches that arrived first. If rows had the SIC
        of their sources, a shedder would take the rows of the smaller stream first. A join would then have
        the rows of one side without those of the other side. With equal SIC, all streams and all partitions
        keep the rows of the same time.
        """
        order = np.argsort(self.first_s, kind="stable")
        row_sic = float(self.sic.sum()) / max(1, int(self.rows.sum()))
        rows = self.rows[order]
        sic = rows.astype(np.float64) * row_sic
        return QueryBatches(rows, sic, self.first_s[order], self.last_s[order]), order

    def only(self, which: BoolArray) -> QueryBatches:
        """Returns the batches for which `which` is true."""
        return QueryBatches(self.rows[which], self.sic[which], self.first_s[which], self.last_s[which])


@dataclass(frozen=True, slots=True, eq=False)
class CapacityView:
    """What waits for each query of a class, and how much of it one round of turns can process.

    Index 0 is the query that is being granted.

    Attributes:
        at: Now.
        queries: The queries of the class whose cost is known.
        batches: The batches that wait for each query, or that will wait when the query has its turn.
        costs_s: By query, the time that a row takes.
        capacity_s: The time that one turn of each query leaves for rows, over all queries.
        span_s: The time in which the rows of the batches arrived.
        new_fractions: By query, the share of the source time window that these rows fill, late rows included.
        most_rows: Upper bound on the next batch when it compensates for earlier, smaller ones.
    """

    at: Moment
    queries: Sequence[Query]
    batches: Sequence[QueryBatches]
    costs_s: FloatArray
    capacity_s: float
    span_s: float
    new_fractions: FloatArray
    most_rows: float

    @property
    def loads_s(self) -> FloatArray:
        """By query, the time that it takes to process all its batches."""
        loads_s: FloatArray = np.array([float(each.rows.sum()) for each in self.batches]) * self.costs_s
        return loads_s

    @property
    def is_enough(self) -> bool:
        """Whether the turns hold all batches of all queries."""
        return float(self.loads_s.sum()) <= self.capacity_s


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """The part of a capacity view that a strategy shows to a shedder.

    Attributes:
        batches: By query, the batches that the shedder chooses among; the first queries of the view only.
        capacity_s: How much of these batches may be kept; `None`: as much as the capacity of the view.
        lost_sic: The SIC of rows of the first query that are shed before the shedder is asked.
        details: By batch, the field of `WaitingBatches` that the shedder decides by: `window`, `key` or
            `utility`.
    """

    batches: Sequence[QueryBatches]
    capacity_s: float | None = None
    lost_sic: float = 0.0
    details: Mapping[str, FloatArray | IntArray] = field(default_factory=dict)


class CapacityViews:
    """Makes the capacity views of classes, and what a shedder observes of a view.

    Args:
        ledger: The queries' SIC.
        tuning: Figures.
    """

    def __init__(self, ledger: SicLedger, tuning: Tuning = TUNING) -> None:
        self._ledger, self._tuning = ledger, tuning
        self._decisions = 0

    def view(
        self,
        queries: Sequence[Query],
        segments: Sequence[Inside],
        turn: Turn,
        at: Moment,
        keep_fraction: float | None = None,
    ) -> CapacityView:
        """Makes the view of a class whose first query is being granted.

        Args:
            queries: The queries of the class whose cost is known.
            segments: By partition, the waiting segments of the first query.
            turn: How long the turns of the class are.
            at: Now.
            keep_fraction: The part of all rows that the load manager keeps. `None`: the manager gives grants,
                and the turns say how much is kept.
        """
        query, *others = queries
        # All queries count with the rows of the same time. A query may have its turn before a turn interval
        # is over. Its rows must fill its turn even then.
        span_s = min(turn.cycle_s, self._span_s(query, at))
        found = [
            self._of_granted(query, segments, at),
            *(self._of_other(other, span_s, at) for other in others),
        ]
        costs_s = np.array([q.cost.row_s for q in queries])
        capacity_s = sum(max(0.0, turn.of(q.key) - q.cost.fixed_s) for q in queries)
        view = CapacityView(
            at,
            queries,
            [batches for batches, _ in found],
            costs_s,
            capacity_s,
            span_s,
            np.array([new_fraction for _, new_fraction in found]),
            most_rows=query.cost.rows_in(self._tuning.longest * turn.of(query.key)),
        )
        if keep_fraction is None:
            return view
        return replace(view, capacity_s=keep_fraction * float(view.loads_s.sum()))

    def observe(self, view: CapacityView, shown: Shown) -> ShedObservation:
        """Returns what the shedder sees."""
        count = len(shown.batches)
        batches = WaitingBatches(
            query=np.repeat(np.arange(count), [each.rows.size for each in shown.batches]),
            rows=np.concatenate([each.rows for each in shown.batches]),
            sic=np.concatenate([each.sic for each in shown.batches]),
            arrival_min_s=np.concatenate([each.first_s for each in shown.batches]),
            arrival_max_s=np.concatenate([each.last_s for each in shown.batches]),
            **shown.details,  # type: ignore[arg-type]
        )
        self._decisions += 1
        reported = self._sic_if_all_were_kept(view)[:count]
        reported[0] -= shown.lost_sic
        return ShedObservation(
            self._decisions,
            view.at.wall_s,
            batches,
            reported,
            np.zeros(count),
            view.capacity_s if shown.capacity_s is None else shown.capacity_s,
            view.costs_s[:count],
        )

    def _sic_if_all_were_kept(self, view: CapacityView) -> FloatArray:
        """By query, its SIC over a window that ends with the waiting batches, if all of them were kept."""
        levels = np.array([self._level(query, view) for query in view.queries])
        is_read = [bool(self._readers_of(query, view)) for query in view.queries]
        levels = levels.mean() + np.where(is_read, 1.0, self._tuning.made_up) * (levels - levels.mean())
        new = [float(each.sic.sum()) for each in view.batches]
        # Rows of a shared stream have less SIC than the part of the window that they fill: the query that
        # writes the stream may have lost rows.
        found: FloatArray = levels * (1.0 - view.new_fractions) + new
        return found

    def _level(self, query: Query, view: CapacityView) -> float:
        """The SIC of a query over the part of the window that stays when the waiting batches come in.

        A loss of rows that are about to leave the window is not compensated. If it were, the query would be
        ahead of the other queries as soon as these rows have left. A query whose stream other queries of the
        class read works for these queries, too: it has the lowest SIC of all of them.
        """
        now_s, after_s = view.at.timer_s, max(view.span_s, self._span_s(query, view.at))
        names = [query.key, *self._readers_of(query, view)]
        known = [sic for name in names if (sic := self._ledger.level(name, now_s, after_s)) is not None]
        return min(known, default=0.0)

    def _readers_of(self, query: Query, view: CapacityView) -> list[str]:
        """The queries of the class that read the stream which a query writes.

        Readers in lower classes do not count: for them the query would take capacity from its own class.
        """
        keys = {other.key for other in view.queries}
        return [key for key in self._ledger.readers_of(query.key) if key in keys]

    def _row_sic(
        self, query: Query, arrived: Mapping[str, float], span_s: float, now_s: float
    ) -> tuple[dict[str, float], float]:
        """By reader, the SIC of one row over a window; and the share of the window that the rows fill.

        The window has all rows that its source has sent in that time, also the rows that wait. Rows get their
        SIC before anything is shed (kalyvianaki2016 section 6). If waiting rows did not count, the rows that
        wait after a sudden rise of the rate would have more SIC than a whole window.

        Args:
            query: The query whose window it is.
            arrived: By reader, rows that no grant has decided about.
            span_s: The time in which these rows arrived. The rest of the window has the rows about which
                grants have decided in as much time.
            now_s: Now, on the timer.
        """
        stw_s = self._ledger.stw_s
        usual = query.backlog.rates.usual_per_s * stw_s / max(1, len(arrived))
        rest = max(0.0, 1.0 - span_s / stw_s)
        found, new_fraction = {}, 0.0
        for name, new_rows in arrived.items():
            rows = (self._ledger.window_rows(query.key, name, now_s) or usual) * rest + new_rows
            upstream = self._ledger.upstream(query.readers[name].stream.id, now_s)
            found[name] = upstream / (max(1.0, rows) * len(arrived))
            new_fraction += new_rows / (max(1.0, rows) * len(arrived))
        return found, new_fraction

    def _span_s(self, query: Query, at: Moment) -> float:
        """The time in which the waiting rows of a query have come.

        That is the age of the oldest row, except for shared streams. A row of a shared stream carries the
        arrival of the row that it was made of, so it is old when it comes. Such rows have come since the last
        grant, because that grant decided about all rows that were there.
        """
        oldest_s = query.backlog.waiting.oldest_s
        if oldest_s is None:
            return 0.0
        age_s = at.age_s(oldest_s)
        if not any(reader.stream.id in self._ledger.writers for reader in query.readers.values()):
            return age_s
        granted_s = query.turn.granted_s if query.lease is None else query.lease.terms.began_s
        return min(age_s, at.timer_s - granted_s)

    def _of_granted(self, query: Query, segments: Sequence[Inside], at: Moment) -> tuple[QueryBatches, float]:
        """The batches of the query that is being granted, one for each segment, and their new fraction."""
        span_s = self._span_s(query, at)
        row_sic, new_fraction = self._row_sic(query, _waiting_rows(query), span_s, at.timer_s)
        batches = QueryBatches(
            _joined([each.rows for each in segments]).astype(np.int64),
            _joined([each.rows * row_sic.get(each.part.reader, 0.0) for each in segments]),
            _joined([each.low_s for each in segments]),
            _joined([each.high_s for each in segments]),
        )
        return batches, new_fraction

    def _of_other(self, query: Query, span_s: float, at: Moment) -> tuple[QueryBatches, float]:
        """The batches that another query will have waiting at its turn, and their new fraction.

        They have the rows that usually arrive in `span_s`, or the rows that wait already if these are more.
        """
        arrived = _waiting_rows(query)
        more = max(0.0, query.backlog.rates.usual_per_s * span_s - sum(arrived.values()))
        arrived = {reader: rows + more / len(arrived) for reader, rows in arrived.items()}
        rows = sum(arrived.values())
        span_of_rows_s = max(span_s, self._span_s(query, at))
        row_sic, new_fraction = self._row_sic(query, arrived, span_of_rows_s, at.timer_s)
        mean_sic = sum(row_sic[reader] * arrived[reader] for reader in arrived) / max(1.0, rows)
        count = min(self._tuning.expected_batches, max(1, int(rows)))
        ends = np.rint(np.linspace(0.0, rows, count + 1)).astype(np.int64)
        each = np.diff(ends) if rows >= 1 else np.empty(0, np.int64)
        # At its turn, the rows of the other query are as old as the rows of the granted query are now. Their
        # arrivals are spread evenly over that time.
        arrival_s = at.wall_s - span_s * (np.arange(each.size, 0, -1) - 0.5) / max(1, each.size)
        sic = each.astype(np.float64) * mean_sic
        return QueryBatches(each, sic, arrival_s, arrival_s), new_fraction


def _waiting_rows(query: Query) -> dict[str, float]:
    """By reader, the rows that were there at the last look and that no grant has decided about since."""
    ends = query.backlog.waiting.ends
    readers = [reader for reader in query.readers.values() if not reader.finished]
    return {
        r.id: float(sum(max(0, end - r.positions.get(p, 0)) for p, end in ends.get(r.id, {}).items()))
        for r in readers
    }


def _joined(arrays: Sequence[np.ndarray]) -> FloatArray:
    return np.concatenate(arrays).astype(np.float64) if arrays else np.empty(0)
