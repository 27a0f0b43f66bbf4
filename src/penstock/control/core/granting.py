"""What a grant holds: what the manager admits, how many rows at most, which of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config.flow import FlowConfig
from penstock.control.backlog.row_values import FetchedValues, RowsNeededError
from penstock.control.backlog.waiting import Waiting, cut
from penstock.control.core.instructions import Outbox, Recorded
from penstock.control.decide.decider import Decider, timing
from penstock.control.measure.delays import arrivals
from penstock.control.measure.lines import ShedLine
from penstock.control.schedule.scheduler import TurnSchedule
from penstock.control.schedule.turns import Turn
from penstock.control.shed.class_shedding import Chosen, ClassShedding
from penstock.control.state.classes import GovernedClass
from penstock.control.state.guard import Guard
from penstock.control.state.lease import Terms
from penstock.control.state.query import Query, Reader
from penstock.control.tuning import TUNING, Tuning
from penstock.grants.plans import KEEP_ALL, ShedPlan, grant_seed, plan_for
from penstock.vocabulary.model import Admission
from penstock.vocabulary.moment import Moment

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingGrant:
    """A grant that is being decided.

    Attributes:
        query: Whose.
        schedule: How long turns are.
        turn: How long the grant of the query may be.
        admission: What the class's manager admits.
        waiting: What waits for the query. Rows that arrive while values are fetched are the next grant's.
        spare: Whether no other class wanted the turn.
    """

    query: Query
    schedule: TurnSchedule
    turn: Turn
    admission: Admission
    waiting: Waiting
    spare: bool


class Granting:
    """Makes the terms of leases.

    Args:
        config: Seed of the samples.
        decider: Asks the managers.
        shedding: The shedders of classes.
        guard: Calls the shedders.
        out: Where shedders' decisions are recorded.
        tuning: Figures.
    """

    def __init__(
        self,
        config: FlowConfig,
        decider: Decider,
        shedding: ClassShedding,
        guard: Guard,
        out: Outbox,
        tuning: Tuning = TUNING,
    ) -> None:
        self.decider, self.shedding = decider, shedding
        self.on = True
        """The kill switch: whether anything is shed."""
        self._seed, self._guard, self._out, self._tuning = config.seed, guard, out, tuning
        self._grants = 0

    def begin(
        self,
        governed: GovernedClass,
        queries: Sequence[Query],
        query: Query,
        schedule: TurnSchedule,
        spare: bool,
    ) -> PendingGrant:
        """Has the class's manager decide what it admits of what waits for a query.

        Args:
            governed: The class.
            queries: All its queries.
            query: The one whose turn it is.
            schedule: How long turns are.
            spare: Whether no other class wanted the turn.
        """
        turn = schedule.turn(query)
        admission = self.decider.admit(governed, queries, query, schedule, turn, self.on)
        return PendingGrant(query, schedule, turn, admission, query.backlog.waiting, spare)

    def finish(
        self,
        pending: PendingGrant,
        governed: GovernedClass,
        queries: Sequence[Query],
        at: Moment,
        may_fetch: bool,
    ) -> Terms:
        """The terms of a lease.

        Args:
            pending: What the manager has decided.
            governed: The class as it is now: it may have changed while values were fetched.
            queries: All queries of the class.
            at: Now.
            may_fetch: Whether the grant may wait for rows that are fetched.

        Raises:
            RowsNeededError: The class's shedder must know values of rows first.
        """
        query, admission = pending.query, pending.admission
        waiting, turn = pending.waiting, pending.turn
        decided, chosen = cut(waiting, admission, row_limit(query, turn, self._tuning)), None
        if self.on and governed.strategy is not None and not query.flags.draining:
            chosen = self._choose(pending, governed, queries, at, may_fetch)
        if chosen is not None:
            decided = chosen.cut
        assert waiting.oldest_s is not None
        self._warn_of_late(query, at.age_s(waiting.oldest_s), governed, decided.late_rows)
        plan = self._plan(governed, query, admission.keep_fraction)
        if chosen is None:
            planned_s, plans = max(turn.length_s, query.cost.fixed_s), {}
        else:
            planned_s, plans = query.cost.batch_s(chosen.rows), dict(chosen.plans)
        times_s, rows = arrivals(
            waiting.parts,
            [decided.late[part.reader][part.partition] for part in waiting.parts],
            [decided.ends[part.reader][part.partition] for part in waiting.parts],
        )
        return Terms(
            at.timer_s,
            decided.ends,
            decided.late,
            plan,
            plans,
            # the clock by which rows arrived may be set while the batch runs, the timer not
            arrival_s=at.timer_s - (at.wall_s - times_s),
            arrival_rows=rows,
            planned_s=planned_s,
            spare=pending.spare,
        )

    def take_in(self, cls: str, fetched: FetchedValues) -> None:
        """Values of rows that the shedder of a class needed."""
        self.shedding.take_in(cls, fetched)

    def _choose(
        self,
        pending: PendingGrant,
        governed: GovernedClass,
        queries: Sequence[Query],
        at: Moment,
        may_fetch: bool,
    ) -> Chosen | None:
        """What the class's shedder keeps of a query, recorded; `None` where it has no word in it."""
        query, waiting = pending.query, pending.waiting
        mine = [query, *(q for q in queries if q.readers and q is not query)]
        turn, most = pending.schedule.turns[query.cls], most_rows(query, self._tuning)
        shedder = str(governed.config.shedder)

        def choose() -> tuple[Chosen, ShedLine] | RowsNeededError | None:
            try:
                chosen = self.shedding.choose(governed, mine, waiting, pending.admission, turn, most, at)
            except RowsNeededError as needed:
                if may_fetch:
                    return needed
                raise
            # the line is made here, too: whatever cannot be said of a decision is the shedder's failure
            return None if chosen is None else (chosen, _shed_line(query, shedder, chosen, at))

        found = self._guard.call(
            f"class {query.cls}: its shedder {shedder}",
            choose,
            lambda _: None,
            "rows are sampled as the manager says",
            at.timer_s,
        )
        if isinstance(found, RowsNeededError):
            raise found
        if found is None:
            return None
        chosen, line = found
        query.shedding.reason = line.reason
        self._out.add(Recorded(line))
        return chosen

    def _plan(self, governed: GovernedClass, query: Query, keep: float) -> ShedPlan:
        self._grants += 1
        sampling = governed.config.sampling
        # a cohort of keys is meant to last; rows and segments are drawn anew in every grant
        seed = self._seed if sampling == "key" else grant_seed(self._seed, self._grants)
        buckets = min(reader.stream.key_buckets for reader in query.readers.values())
        return plan_for(keep, sampling, seed, buckets)

    def _warn_of_late(self, query: Query, age_s: float, governed: GovernedClass, rows: int) -> None:
        """Says once that a query sheds what is far older than its target: an old log, or it was down."""
        target_s = governed.plant.cls.delay_target_s
        if rows and age_s >= self._tuning.old_targets * target_s and not query.shedding.warned_late:
            query.shedding.warned_late = True
            _log.warning(
                "query %s sheds %d rows as late: the oldest arrived %.0f s ago, its target is %g s; "
                "to catch up on an old log run it once with availableNow, or with shedding off",
                query.name,
                rows,
                age_s,
                target_s,
            )


def row_limit(query: Query, turn: Turn, tuning: Tuning = TUNING) -> float:
    """Rows that a batch may have: what its turn holds, once its cost is known, and never a leap."""
    most, known = most_rows(query, tuning), timing(query, turn, tuning)
    if query.cost.warming or known is None:
        return most
    return min(most, max(1.0, query.cost.rows_in(known.length_s)))


def most_rows(query: Query, tuning: Tuning = TUNING) -> float:
    """Rows that a batch may have by those before it: nothing is known of much larger ones."""
    if query.cost.warming:
        return tuning.first_rows
    return max(tuning.first_rows, tuning.growth * query.costs.largest_rows)


def tick_terms(waiting: Waiting, at: Moment) -> Terms:
    """The terms of an empty batch that closes windows."""
    return Terms(at.timer_s, {name: dict(positions) for name, positions in waiting.ends.items()})


def carried_plan(reader: Reader) -> ShedPlan:
    """The plan of an offset without rows: what was decided about windows must not be forgotten."""
    plan = reader.offset.plan
    return plan if plan.carries_over else KEEP_ALL


def _shed_line(query: Query, shedder: str, chosen: Chosen, at: Moment) -> ShedLine:
    seen, decision = chosen.seen, chosen.decision
    return ShedLine(
        shedder,
        query.cls,
        query.name,
        seen.id,
        at.wall_s,
        decision.reason,
        seen.capacity,
        float(seen.load.sum()),
        decision.kept_load,
        chosen.rows,
        dict(chosen.shed),
        chosen.cut.late_rows,
        float(decision.expected_sic[0]),
    )
