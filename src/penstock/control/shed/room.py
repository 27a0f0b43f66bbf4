"""What waits for the queries of a class, or will when their turns come, and how much of it these hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.backlog.row_values import Inside
from penstock.control.measure.sic import SicLedger
from penstock.control.schedule.turns import Turn
from penstock.control.state.classes import GovernedClass
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning
from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.policies.shedding.base import ShedObservation, WaitingBatches
from penstock.vocabulary.model import FloatArray
from penstock.vocabulary.moment import Moment


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Batches of one query, as arrays."""

    rows: IntArray
    sic: FloatArray
    first_s: FloatArray
    last_s: FloatArray

    def split(self, batch: IntArray, rows: IntArray) -> Part:
        """Smaller batches, each with some rows of one of these."""
        each = self.sic[batch] * (rows / np.maximum(1, self.rows[batch]))
        return Part(rows, each, self.first_s[batch], self.last_s[batch])

    def in_step(self) -> tuple[Part, IntArray]:
        """The same batches by arrival, each row worth the same, and where each stood.

        Among rows of equal worth a shedder takes the first. By the SIC of their sources it would take those
        of the smaller stream, and a join would have one side without the other; in step, all streams and
        partitions keep the same stretch of time.
        """
        order = np.argsort(self.first_s, kind="stable")
        row_sic = float(self.sic.sum()) / max(1, int(self.rows.sum()))
        rows = self.rows[order]
        return Part(rows, rows.astype(np.float64) * row_sic, self.first_s[order], self.last_s[order]), order

    def only(self, which: BoolArray) -> Part:
        """Some of the batches."""
        return Part(self.rows[which], self.sic[which], self.first_s[which], self.last_s[which])


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What waits for each query of a class, and how much of it one round of turns can process.

    Index 0 is the query that is being granted.

    Attributes:
        at: Now.
        queries: All queries of the class.
        parts: What waits for each query.
        costs_s: What a row of each query takes.
        capacity_s: What the turns of a cycle hold.
        span_s: The time whose rows the parts have.
        fresh: By query, the share of the source time window that these rows fill, late rows included.
        most_rows: Upper bound on the next batch when it compensates for earlier, smaller ones.
    """

    at: Moment

    queries: Sequence[Query]
    parts: Sequence[Part]
    costs_s: FloatArray
    capacity_s: float
    span_s: float
    fresh: FloatArray
    most_rows: float

    @property
    def loads_s(self) -> FloatArray:
        """What it takes to keep everything."""
        loads_s: FloatArray = np.array([float(part.rows.sum()) for part in self.parts]) * self.costs_s
        return loads_s

    @property
    def is_enough(self) -> bool:
        return float(self.loads_s.sum()) <= self.capacity_s


class Rooms:
    """Says how much room there is, and shows it to a shedder.

    Args:
        ledger: The queries' SIC.
        tuning: Figures.
    """

    def __init__(self, ledger: SicLedger, tuning: Tuning = TUNING) -> None:
        self._ledger, self._tuning = ledger, tuning
        self._decisions = 0

    def of(
        self,
        governed: GovernedClass,
        queries: Sequence[Query],
        mine: Sequence[Inside],
        turn: Turn,
        at: Moment,
    ) -> Room:
        """The room of a class's turns; the waiting rows of the first query, which is granted, by segment."""
        query, *others = queries
        # over the same time for all: one whose turn comes early, before a cycle is over, fills it even so
        span_s = min(turn.cycle_s, self._span_s(query, at))
        found = [self._mine(query, mine, at), *(self._expected(other, span_s, at) for other in others)]
        parts, fresh = [part for part, _ in found], np.array([fresh for _, fresh in found])
        costs_s = np.array([q.cost.row_s for q in queries])
        capacity_s = sum(max(0.0, turn.of(q.key) - q.cost.fixed_s) for q in queries)
        most_rows = query.cost.rows_in(self._tuning.longest * turn.of(query.key))
        room = Room(at, queries, parts, costs_s, capacity_s, span_s, fresh, most_rows)
        if governed.traits.gives_grants:
            return room
        return replace(room, capacity_s=governed.plant.keep_fraction * float(room.loads_s.sum()))

    def observe(
        self,
        room: Room,
        parts: Sequence[Part],
        capacity_s: float | None = None,
        lost_sic: float = 0.0,
        **details: FloatArray | IntArray,
    ) -> ShedObservation:
        """What a shedder is shown.

        Args:
            room: What waits.
            parts: The batches that it chooses among, of the first queries of the room.
            capacity_s: Of the room, if left out.
            lost_sic: Of rows of the first query that are not to choose among, and shed.
            **details: By batch, what the shedder goes by: window, key or utility.
        """
        count = len(parts)
        batches = WaitingBatches(
            query=np.repeat(np.arange(count), [part.rows.size for part in parts]),
            rows=np.concatenate([part.rows for part in parts]),
            sic=np.concatenate([part.sic for part in parts]),
            arrival_min_s=np.concatenate([part.first_s for part in parts]),
            arrival_max_s=np.concatenate([part.last_s for part in parts]),
            **details,  # type: ignore[arg-type]
        )
        self._decisions += 1
        reported = self._if_all_were_kept(room)[:count]
        reported[0] -= lost_sic
        capacity_s = room.capacity_s if capacity_s is None else capacity_s
        return ShedObservation(
            self._decisions,
            room.at.wall_s,
            batches,
            reported,
            np.zeros(count),
            capacity_s,
            room.costs_s[:count],
        )

    def _if_all_were_kept(self, room: Room) -> FloatArray:
        """Each query's SIC over a window of which what waits is the newest part, kept whole."""
        levels = np.array([self._level(query, room) for query in room.queries])
        writes = [bool(self._readers_of(query, room)) for query in room.queries]
        levels = levels.mean() + np.where(writes, 1.0, self._tuning.made_up) * (levels - levels.mean())
        new = [float(part.sic.sum()) for part in room.parts]
        # behind a shared stream new rows are worth less than the part of the window that they take
        found: FloatArray = levels * (1.0 - room.fresh) + new
        return found

    def _level(self, query: Query, room: Room) -> float:
        """A query's SIC; of one that others of its class read, the lowest of theirs, for which it works too.

        Over what stays in the window when what waits is in it: what was lost longer ago is not made up for,
        or the query would be ahead of the others once it has left the window.
        """
        now_s, after_s = room.at.timer_s, max(room.span_s, self._span_s(query, room.at))
        names = [query.key, *self._readers_of(query, room)]
        known = [sic for name in names if (sic := self._ledger.level(name, now_s, after_s)) is not None]
        return min(known, default=0.0)

    def _readers_of(self, query: Query, room: Room) -> list[str]:
        """The queries of its class that read what a query writes: it does not lose for lower ones."""
        keys = {other.key for other in room.queries}
        return [key for key in self._ledger.readers_of(query.key) if key in keys]

    def _row_sic(
        self, query: Query, came: Mapping[str, float], span_s: float, now_s: float
    ) -> tuple[dict[str, float], float]:
        """By reader, what one of its rows adds to the query's SIC over a window; the part of it that is new.

        The window has all rows that its source has sent in that time, also those that wait (kalyvianaki2016
        section 6: they get their SIC before anything is shed). Without them, what waits after a sudden rise
        of the rate would be worth more than a whole window.

        Args:
            query: Whose.
            came: By reader, rows that nothing was decided about.
            span_s: In which they came: the rest of the window has as many as were decided about in that time.
            now_s: On the timer.
        """
        stw_s = self._ledger.stw_s
        usual = query.backlog.rates.usual_per_s * stw_s / max(1, len(came))
        rest = max(0.0, 1.0 - span_s / stw_s)
        found, fresh = {}, 0.0
        for name, new_rows in came.items():
            rows = (self._ledger.window_rows(query.key, name, now_s) or usual) * rest + new_rows
            upstream = self._ledger.upstream(query.readers[name].stream.id, now_s)
            found[name] = upstream / (max(1.0, rows) * len(came))
            fresh += new_rows / (max(1.0, rows) * len(came))
        return found, fresh

    def _span_s(self, query: Query, at: Moment) -> float:
        """In how much time what waits has come.

        Rows of a shared stream have the arrival of their origin, and are older than that when they come: they
        came since the last grant, which decided about all that was there.
        """
        oldest_s = query.backlog.waiting.oldest_s
        if oldest_s is None:
            return 0.0
        age_s = at.age_s(oldest_s)
        if not any(reader.stream.id in self._ledger.writers for reader in query.readers.values()):
            return age_s
        granted_s = query.turn.granted_s if query.lease is None else query.lease.terms.began_s
        return min(age_s, at.timer_s - granted_s)

    def _mine(self, query: Query, mine: Sequence[Inside], at: Moment) -> tuple[Part, float]:
        span_s = self._span_s(query, at)
        row_sic, fresh = self._row_sic(query, _waiting_rows(query), span_s, at.timer_s)
        part = Part(
            _joined([part.rows for part in mine]).astype(np.int64),
            _joined([part.rows * row_sic.get(part.part.reader, 0.0) for part in mine]),
            _joined([part.low_s for part in mine]),
            _joined([part.high_s for part in mine]),
        )
        return part, fresh

    def _expected(self, query: Query, span_s: float, at: Moment) -> tuple[Part, float]:
        """What another query will have waiting at its turn: the rows of so much time, or more if it waits."""
        came = _waiting_rows(query)
        more = max(0.0, query.backlog.rates.usual_per_s * span_s - sum(came.values()))
        came = {reader: rows + more / len(came) for reader, rows in came.items()}
        rows = sum(came.values())
        row_sic, fresh = self._row_sic(query, came, max(span_s, self._span_s(query, at)), at.timer_s)
        mean = sum(row_sic[reader] * came[reader] for reader in came) / max(1.0, rows)
        count = min(self._tuning.expected_batches, max(1, int(rows)))
        ends = np.rint(np.linspace(0.0, rows, count + 1)).astype(np.int64)
        each = np.diff(ends) if rows >= 1 else np.empty(0, np.int64)
        # as old then as this query's are now: spread over that time
        arrival_s = at.wall_s - span_s * (np.arange(each.size, 0, -1) - 0.5) / max(1, each.size)
        return Part(each, each.astype(np.float64) * mean, arrival_s, arrival_s), fresh


def _waiting_rows(query: Query) -> dict[str, float]:
    """By reader, rows that wait: those that were there at the last look and are not granted since."""
    ends = query.backlog.waiting.ends
    readers = [reader for reader in query.readers.values() if not reader.finished]
    return {
        r.id: float(sum(max(0, end - r.positions.get(p, 0)) for p, end in ends.get(r.id, {}).items()))
        for r in readers
    }


def _joined(arrays: Sequence[np.ndarray]) -> FloatArray:
    return np.concatenate(arrays).astype(np.float64) if arrays else np.empty(0)
