"""What a class sheds, decided over all its queries at once; a grant carries out its query's part.

When a query has its turn, the class's shedder looks at what waits for it, segment by segment, and at what
the other queries will have waiting at theirs, and keeps what the turns of one cycle hold. What it keeps of
this query's segments is the grant's plan; the parts of the others are decided with their own grants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.control.backlog import Cut, Stretch, cut
from penstock.control.classes import GovernedClass
from penstock.control.demand import SLACK_FRACTION
from penstock.control.members import Query
from penstock.control.paths import Paths
from penstock.control.sic import SicLedger
from penstock.control.turns import Turn
from penstock.grants.plan import KEEP_ALL, SCALE, Plan
from penstock.model import FloatArray, Grant
from penstock.policies.quality.sic import IntArray
from penstock.policies.shedding.base import ShedDecision, ShedObservation, WaitingBatches

EXPECTED_BATCHES = 8
"""In so many batches the rows count that another query will have at its turn."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A query's part of a decision.

    Attributes:
        cut: Where the grant ends, and what of it is late.
        plans: By reader.
        rows: That are kept.
        decision: The whole of it.
    """

    cut: Cut
    plans: Mapping[str, Plan]
    rows: int
    decision: ShedDecision


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Batches of one query, as arrays."""

    rows: IntArray
    sic: FloatArray
    first_s: FloatArray
    last_s: FloatArray


_Inside = tuple[Stretch, IntArray, IntArray]
"""A stretch, which of its segments a cut decides about, and how many rows of each."""


class ClassShedding:
    """Chooses what of a query's waiting segments is kept.

    Args:
        ledger: The queries' SIC.
        paths: Where queries stand on the ways of their rows.
        clock: Seconds since the epoch, as arrival times are.
        timer: Seconds that never go back.
    """

    def __init__(
        self, ledger: SicLedger, paths: Paths, clock: Callable[[], float], timer: Callable[[], float]
    ) -> None:
        self._ledger, self._paths, self._clock, self._timer = ledger, paths, clock, timer
        self._decisions = 0

    def choose(
        self,
        governed: GovernedClass,
        query: Query,
        others: Sequence[Query],
        grant: Grant,
        turn: Turn,
        most_rows: float,
    ) -> Chosen | None:
        """A query's part of what its class keeps.

        Args:
            governed: The class.
            query: The one to be granted, whose waiting rows were looked at.
            others: The other queries of its class.
            grant: What the manager says, of which only what is late counts here.
            turn: How long grants of the class's queries may be.
            most_rows: That the grant may have.

        Returns:
            `None` if it is not for the shedder to decide: the class has none, is in a dry run or still
            learns what its batches cost, or all that waits fits into its turns.
        """
        waiting, shedder = query.waiting, governed.shedder
        known = all(q.cost.ready for q in (query, *others))
        if shedder is None or waiting is None or governed.cycle.dry_run or not known:
            return None
        # what would be late even so: a batch may be longer than the one that the manager had in mind
        target_s = governed.plant.cls.delay_target_s * self._paths.due_fraction(query.key)
        target_s *= 1.0 - SLACK_FRACTION
        latest_s = self._clock() + turn.of(query.key) - target_s
        decided = cut(waiting, Grant(self._clock(), max(grant.shed_before_s, latest_s), 1.0), math.inf)
        tolerated = float(governed.config.settings.get("late_fraction", 0.0))
        if decided.late_rows <= tolerated * (decided.rows + decided.late_rows):
            decided = cut(waiting, Grant(self._clock(), -math.inf, 1.0), math.inf)
        mine = _inside(waiting.stretches, decided)
        observation = self._observation(governed, query, others, mine, turn)
        if observation is None:
            return None
        decision = shedder.decide(observation)
        if decision.unit == "key":
            chosen = _cohort(decided, query, decision)
        else:
            chosen = _carried_out(decided, mine, decision, shedder.knows_probability)
        return chosen if chosen.rows <= most_rows else None

    def _observation(
        self,
        governed: GovernedClass,
        query: Query,
        others: Sequence[Query],
        mine: Sequence[_Inside],
        turn: Turn,
    ) -> ShedObservation | None:
        """What waits, or will, and how much of it the turns hold; `None` if that is all of it."""
        queries = [query, *others]
        parts = [self._mine(query, mine), *(self._expected(other, turn.cycle_s) for other in others)]
        costs_s = np.array([q.cost.row_s for q in queries])
        waiting_s = sum(float(part.rows.sum()) * cost for part, cost in zip(parts, costs_s, strict=True))
        capacity_s = sum(max(0.0, turn.of(q.key) - q.cost.fixed_s) for q in queries)
        if not governed.gives_grants:
            capacity_s = governed.plant.keep_fraction * waiting_s
        if waiting_s <= capacity_s:
            return None
        batches = WaitingBatches(
            query=np.repeat(np.arange(len(queries)), [part.rows.size for part in parts]),
            rows=np.concatenate([part.rows for part in parts]),
            sic=np.concatenate([part.sic for part in parts]),
            arrival_min_s=np.concatenate([part.first_s for part in parts]),
            arrival_max_s=np.concatenate([part.last_s for part in parts]),
        )
        self._decisions += 1
        reported = self._if_all_were_kept(queries, parts)
        nothing = np.zeros(len(queries))
        return ShedObservation(
            self._decisions, self._clock(), batches, reported, nothing, capacity_s, costs_s
        )

    def _if_all_were_kept(self, queries: Sequence[Query], parts: Sequence[_Part]) -> FloatArray:
        """Each query's SIC over a window of which what waits is the newest part, kept whole."""
        found = np.empty(len(queries))
        for i, (query, part) in enumerate(zip(queries, parts, strict=True)):
            new = float(part.sic.sum())
            found[i] = self._level(query) * max(0.0, 1.0 - new) + new
        return found

    def _level(self, query: Query) -> float:
        """A query's SIC; of one that others read, the lowest of theirs, for which it works too."""
        now_s = self._timer()
        names = [query.key, *self._ledger.readers_of(query.key)]
        known = [sic for name in names if (sic := self._ledger.of(name, now_s).value) is not None]
        return min(known, default=0.0)

    def _row_sic(self, query: Query) -> dict[str, float]:
        """By reader, what one of its rows adds to the query's SIC over a window."""
        readers, now_s = [reader for reader in query.readers.values() if not reader.finished], self._timer()
        usual = query.rate_per_s * self._ledger.stw_s / max(1, len(readers))
        found = {}
        for reader in readers:
            rows = self._ledger.window_rows(query.key, reader.id, now_s) or usual
            upstream = self._ledger.upstream(str(reader.log.directory), now_s)
            found[reader.id] = upstream / (max(1.0, rows) * len(readers))
        return found

    def _mine(self, query: Query, mine: Sequence[_Inside]) -> _Part:
        row_sic = self._row_sic(query)
        rows = [kept for _, _, kept in mine]
        return _Part(
            _joined(rows).astype(np.int64),
            _joined([kept * row_sic.get(s.reader, 0.0) for s, _, kept in mine]),
            _joined([s.arrival_min_s[at] for s, at, _ in mine]),
            _joined([s.arrival_max_s[at] for s, at, _ in mine]),
        )

    def _expected(self, query: Query, cycle_s: float) -> _Part:
        """What another query will have waiting when its turn comes: a cycle's rows, or more if they wait."""
        waiting = 0 if query.waiting is None else query.waiting.rows
        rows = max(float(waiting), query.rate_per_s * cycle_s)
        row_sic = self._row_sic(query)
        mean = sum(row_sic.values()) / max(1, len(row_sic))
        count = min(EXPECTED_BATCHES, max(1, int(rows)))
        each = np.full(count, max(1, round(rows / count)), np.int64) if rows >= 1 else np.empty(0, np.int64)
        # as old then as this query's are now: spread over a cycle
        arrival_s = self._clock() - cycle_s * (np.arange(each.size, 0, -1) - 0.5) / max(1, each.size)
        return _Part(each, each.astype(np.float64) * mean, arrival_s, arrival_s)


def _inside(stretches: Sequence[Stretch], decided: Cut) -> list[_Inside]:
    """By stretch, which of its segments have rows that a cut decides about, and how many."""
    found = []
    for stretch in stretches:
        late = decided.late[stretch.reader][stretch.partition]
        end = decided.ends[stretch.reader][stretch.partition]
        rows = np.minimum(stretch.first + stretch.rows, end) - np.maximum(stretch.first, late)
        at = np.flatnonzero(rows > 0)
        found.append((stretch, at, rows[at]))
    return found


def _carried_out(decided: Cut, mine: Sequence[_Inside], decision: ShedDecision, random: bool) -> Chosen:
    """The plans of a query's readers, by the first of a decision's batches, which are its segments."""
    keep, at = decision.keep, 0
    chosen: dict[str, dict[int, tuple[int, ...]]] = {}
    kept_rows = all_rows = 0
    for stretch, inside, rows in mine:
        kept = keep[at : at + inside.size]
        at += inside.size
        kept_rows, all_rows = kept_rows + int(rows[kept].sum()), all_rows + int(rows.sum())
        firsts = stretch.segment[inside[kept]]
        chosen.setdefault(stretch.reader, {})[stretch.partition] = tuple(firsts.tolist())
    if kept_rows == all_rows:
        return Chosen(decided, dict.fromkeys(chosen, KEEP_ALL), kept_rows, decision)
    # where coins chose, a kept row stands for as many as there were for each that was kept
    drawn = max(1, round(kept_rows / all_rows * SCALE)) if random and kept_rows else 0
    plans = {reader: Plan("chosen", chosen=firsts, drawn=drawn) for reader, firsts in chosen.items()}
    return Chosen(decided, plans, kept_rows, decision)


def _cohort(decided: Cut, query: Query, decision: ShedDecision) -> Chosen:
    """The same part of the keys in every stream, and the same keys as long as the seed is the same."""
    part = decision.keep_probability or 0.0
    plans = {
        reader.id: Plan("key", key_keep=round(part * reader.log.key_buckets), seed=decision.seed or 0)
        for reader in query.readers.values()
    }
    return Chosen(decided, plans, round(part * decided.rows), decision)


def _joined(arrays: Sequence[np.ndarray]) -> FloatArray:
    return np.concatenate(arrays).astype(np.float64) if arrays else np.empty(0)
