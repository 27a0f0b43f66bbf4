"""Makes a grant: how many rows it may have, and which rows the manager and the shedder admit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config.flow import FlowConfig
from penstock.control.backlog.row_values import FetchedValues, RowsNeededError
from penstock.control.backlog.waiting import Waiting, cut
from penstock.control.core.instructions import Outbox, Recorded
from penstock.control.decide.decider import Decider, full_s
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
        query: The query that gets the grant.
        schedule: The lengths of all turns.
        turn: The turn of the query: how long its grant may be.
        admission: What the class's manager admits.
        waiting: The query's waiting rows. Rows that arrive while values are fetched wait for the next grant.
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
        config: The configuration, with the seed of the samples.
        decider: Asks the managers.
        shedding: The shedders of classes.
        guard: Calls the shedders.
        out: Takes the shedders' decisions for the record.
        tuning: Tuned constants.
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
        """Begins a grant: asks the class's manager which of a query's waiting rows it admits.

        Args:
            governed: The class.
            queries: All queries of the class.
            query: The query that has the turn.
            schedule: The lengths of all turns.
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
        """Returns the terms of the lease for a grant.

        Args:
            pending: The grant, with the manager's decision.
            governed: The class as it is now. It may have changed while values were fetched.
            queries: All queries of the class.
            at: The present time.
            may_fetch: Whether the grant may wait until rows are fetched.

        Raises:
            RowsNeededError: The class's shedder needs values of rows that are not fetched yet.
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
            planned_s, plans = query.cost.batch_s(chosen.kept.rows), dict(chosen.kept.plans)
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
            task_s=turn.task_s,
            spare=pending.spare,
        )

    def take_in(self, cls: str, fetched: FetchedValues) -> None:
        """Takes in fetched values of rows, for the shedder of a class."""
        self.shedding.take_in(cls, fetched)

    def _choose(
        self,
        pending: PendingGrant,
        governed: GovernedClass,
        queries: Sequence[Query],
        at: Moment,
        may_fetch: bool,
    ) -> Chosen | None:
        """Asks the class's shedder which rows of a query it keeps, and records its decision.

        The result is `None` if the shedder fails or leaves the choice to the manager's keep fraction.
        """
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
        """Warns once if a query sheds rows that are far older than its target.

        Such rows are in an old log, or arrived while the query was down.
        """
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
    """Returns the most rows that a query's next batch may have.

    These are the rows that fit into the turn, once the query's cost is known, but at most `most_rows`.
    """
    most, cost = most_rows(query, tuning), query.cost
    if cost.ready and not cost.warming and cost.row_s > 0.0:
        return min(most, max(1.0, cost.rows_in(full_s(cost, turn, tuning))))
    return most


def most_rows(query: Query, tuning: Tuning = TUNING) -> float:
    """Returns the most rows that a batch may have, judged by the query's earlier batches.

    A batch may only be some times as large as the largest one before: costs of larger batches are unknown.
    Rows may cost milliseconds. While their cost is being learned, a batch must not keep the machine for long.
    """
    cost = query.cost
    if not cost.ready and cost.first is not None:
        return cost.first.most_rows(tuning.learning_s * min(cost.cores, tuning.learning_tasks))
    if cost.warming:
        return tuning.first_rows
    return max(tuning.first_rows, tuning.growth * query.costs.largest_rows)


def tick_terms(waiting: Waiting, at: Moment) -> Terms:
    """Returns the terms of an empty batch that closes windows."""
    return Terms(at.timer_s, {name: dict(positions) for name, positions in waiting.ends.items()})


def carried_plan(reader: Reader) -> ShedPlan:
    """Returns the plan for an offset without rows. It keeps earlier decisions about windows."""
    plan = reader.offset.plan
    return plan if plan.carries_over else KEEP_ALL


def _shed_line(query: Query, shedder: str, chosen: Chosen, at: Moment) -> ShedLine:
    seen, kept, decision = chosen.seen, chosen.kept, chosen.kept.decision
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
        kept.rows,
        dict(kept.shed),
        chosen.cut.late_rows,
        float(decision.expected_sic[0]),
    )
