"""Which query has the next turn, how long its turn may be, and when a batch is worth starting."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from penstock.control.schedule.contest import Contest
from penstock.control.schedule.demand import demands_of, ticks_of
from penstock.control.schedule.shares import Redistribution
from penstock.control.schedule.snapshot import BoolArray, IntArray, Snapshot
from penstock.control.schedule.turns import Demand, Turn, Turns, plan_turns
from penstock.control.schedule.urgency import latest_starts
from penstock.control.schedule.usage import Usage
from penstock.control.state.guard import Guard
from penstock.control.state.query import Query
from penstock.control.tuning import LEAST_SHARE, TUNING, Tuning
from penstock.policies.capacity import HighestRate
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class TurnSchedule:
    """How long turns are at one moment: planned once, and used by every step of a grant.

    Attributes:
        seen: The queries as they were when the turns were planned.
        demands: By class that has work or wants a tick, what the class asks for.
        turns: By the same classes, how long their turns are.
        lengths_s: By query, how long its turn is; 0 if its class is none of these.
    """

    seen: Snapshot
    demands: Mapping[str, Demand]
    turns: Mapping[str, Turn]
    lengths_s: FloatArray

    def turn(self, query: Query) -> Turn:
        """How long a grant of a query may be."""
        turn = self.turns[query.cls]
        return Turn(turn.of(query.key), turn.cycle_s, turn.asking, turn.lengths_s, turn.task_s)


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The result of a contest.

    Attributes:
        schedule: The turns with which the contest was held.
        winner: The query that has the next turn; `None` if none has it.
        rates_per_s: By query of the winner's class that could have had the turn, its rate, if known.
        classes: The classes that want a turn.
        again_s: In how many seconds another query may want a turn, if nothing happens until then.
    """

    schedule: TurnSchedule
    winner: Query | None = None
    rates_per_s: Mapping[str, float | None] = field(default_factory=dict)
    classes: Collection[str] = field(default_factory=set)
    again_s: float = math.inf


class Scheduler:
    """Gives turns to the queries of all classes.

    Args:
        capacity: Says which part of the time each class has.
        eager: Whether a batch is worth starting as soon as one row waits.
        guard: Calls the policies.
        tuning: Figures.
    """

    def __init__(self, capacity: Redistribution, eager: bool, guard: Guard, tuning: Tuning = TUNING) -> None:
        self.capacity, self.turns, self.usage = capacity, Turns(capacity.shares, tuning), Usage()
        self.parallel = 1.0
        """How many batches run at once, on average over the time in which any runs: batches overlap."""
        self.plans = 0
        """How often turns were planned; benches read it."""
        self._eager, self._guard, self._tuning = eager, guard, tuning
        self._inside: dict[str, HighestRate] = {}

    def pass_time(self, running: int, passed_s: float) -> None:
        """Takes in for how long how many batches ran."""
        if running:
            weight = 1.0 - math.exp(-passed_s / self._tuning.parallel_memory_s)
            self.parallel += (running - self.parallel) * weight

    def forget_class(self, name: str) -> None:
        """Forgets a class that is gone."""
        self.turns.remove(name)
        self._inside.pop(name, None)

    # -- how long turns are ---------------------------------------------------------------------

    def schedule(self, seen: Snapshot, *also: str) -> TurnSchedule:
        """Plans the turns of classes that have work, and of the classes in `also` even without work.

        A class that has lent capacity and needs it has it back at once. A class that only wants a tick, which
        closes windows, has a turn for the tick. That turn takes nothing from the turns of other classes.
        """
        self.plans += 1
        demands, shares = demands_of(seen, also, self._tuning), {}
        ticks = ticks_of(seen, demands)
        for name, demand in demands.items():
            share, claim = self.capacity.shares[name], self.capacity.claims[name]
            load = claim if demand.load is None else demand.load / self.parallel
            shares[name] = max(share, min(load, claim), LEAST_SHARE)
        narrow = self._tuning.narrow if (seen.cores > 1.0).any() else 0.0
        turns = plan_turns(demands, shares, self.parallel, self._tuning, narrow)
        least = self._tuning.least_fixed
        turns.update({name: Turn(least * tick.fixed_s, tick.target_s) for name, tick in ticks.items()})
        return TurnSchedule(seen, {**demands, **ticks}, turns, seen.turn_s(turns))

    # -- whose turn it is -----------------------------------------------------------------------

    def hold_contest(
        self, seen: Snapshot, charged: Sequence[Query], returning: Sequence[Query], ending: Sequence[Query]
    ) -> Verdict:
        """Finds the query that has the next turn.

        Args:
            seen: All queries.
            charged: Queries whose running batch counts as time that its class has used.
            returning: Queries of `ending` that compete for the turn if enough rows for another batch wait.
            ending: Queries whose running batch is about to end.
        """
        again = _which(seen, returning)
        asking = seen.asks | again
        schedule = self.schedule(seen)
        turns, turn_s = schedule.turns, schedule.lengths_s
        batch_s = seen.batch_s(turn_s)
        takes_s = seen.takes_s(batch_s, turns)
        starts_s = partial(self._starts_s, seen, turns, batch_s, takes_s, _which(seen, ending))
        if self._eager:
            willing, again_s = _with_rows(seen, asking)
        else:
            put_off_s = self._put_off_s(seen, turns, turn_s, starts_s(self._tuning.latest_at))
            willing, again_s = self._willing(
                seen, batch_s, put_off_s, starts_s(self._tuning.latest_at), asking
            )
        wanting = willing & seen.asks
        if not wanting.any():
            return Verdict(schedule, again_s=again_s)
        classes = {seen.classes[i].name for i in seen.classes_of(wanting | (willing & (seen.rows > 0)))}
        contest = Contest(
            seen,
            wanting,
            # a class whose batch is about to end may have the next turn too; that batch counts as used time
            self.prices(charged, seen.at.timer_s),
            turns,
            {name: turns[name].length_s * schedule.demands[name].queries for name in turns},
            self.turns,
            batch_s,
            takes_s,
            # a class goes first only if rows would be lost, not if they would be done a little later
            cache(partial(starts_s, 1.0 - self._tuning.slack_fraction)),
            self._within(),
            self._tuning,
        )
        cls, able_at = contest.winner(classes)
        winner, rates_per_s = self._inside_class(seen, cls, able_at)
        if winner is None:  # the next class has only a batch about to end; its price grows with time
            again_s = min(again_s, self._tuning.look_every_s)
        return Verdict(schedule, winner, rates_per_s, classes, again_s)

    def begin(self, verdict: Verdict, busy: Collection[str], charged: Sequence[Query]) -> bool:
        """Books that the winner of a contest takes its turn; returns whether no other class wanted the turn.

        Args:
            verdict: The result of the contest.
            busy: Classes with a running batch that is not about to end.
            charged: Queries whose running batch counts as time that its class has used.
        """
        winner, now_s = verdict.winner, verdict.schedule.seen.at.timer_s
        assert winner is not None
        inside = self._rounds(winner.cls)
        self._guard.call(
            "highest rate",
            lambda: inside.took(winner.key, verdict.rates_per_s),
            lambda _: None,
            "of the queries that can run, the first to join goes",
            now_s,
        )
        return self.turns.begin(winner.cls, {*verdict.classes, *busy}, self.prices(charged, now_s))

    def _inside_class(
        self, seen: Snapshot, cls: str | None, able: IntArray
    ) -> tuple[Query | None, Mapping[str, float | None]]:
        """The query of a class that goes first, and the rates of all queries that could have gone first.

        Args:
            seen: All queries.
            cls: The class; `None` if no class may have a turn.
            able: The queries of the class that may have the turn, as indexes into the snapshot.
        """
        if cls is None or not able.size:
            return None, {}
        rows = seen.rows[able]
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.where(rows > 0, rows / (seen.fixed_s[able] + seen.row_s[able] * rows), 0.0).tolist()
        places, ready = able.tolist(), seen.ready[able].tolist()
        keys = [seen.keys[i] for i in places]
        rates_per_s = {
            key: rate if known else None for key, rate, known in zip(keys, rates, ready, strict=True)
        }
        inside = self._rounds(cls)
        first = self._guard.call(
            "highest rate",
            # a key that is not there raises an error, too
            lambda: keys.index(inside.next_of(rates_per_s)),
            lambda _: 0,
            "of the queries that can run, the first to join goes",
            seen.at.timer_s,
        )
        return seen.queries[places[first]], rates_per_s

    def _rounds(self, cls: str) -> HighestRate:
        return self._inside.setdefault(cls, HighestRate())

    def _within(self) -> set[str]:
        """Classes that usually use no more of the time than they may claim."""
        claims, uses = self.capacity.claims.items(), self.usage.uses
        return {name for name, claim in claims if uses.get(name, 0.0) <= claim * self.parallel}

    # -- is a batch worth starting --------------------------------------------------------------

    def _willing(
        self,
        seen: Snapshot,
        batch_s: FloatArray,
        put_off_s: FloatArray,
        starts_s: FloatArray,
        asking: BoolArray,
    ) -> tuple[BoolArray, float]:
        """Which queries want a batch now, and in how many seconds the next of the other queries wants one.

        Lower classes are examined first, because a higher class starts early if a batch that a lower class
        wants would make it late.
        """
        is_put_off = np.isfinite(starts_s) & (put_off_s > 0.0)
        longer_s = batch_s * (1.0 + seen.error) / self.parallel
        willing, lower_s, again_s = np.zeros(asking.size, np.bool_), 0.0, math.inf
        for level in sorted({seen.classes[i].priority for i in seen.classes_of(asking)}):
            mine = asking & (seen.priority == level)
            # a batch that a lower class wants now would run before a batch that is put off
            wait_s = np.where(is_put_off, np.maximum(starts_s - lower_s, 0.0), put_off_s)
            wants = mine & (wait_s <= 0.0)
            willing |= wants
            again_s = min(again_s, float(wait_s[mine & ~wants].min(initial=math.inf)))
            lower_s = max(lower_s, float(longer_s[wants].max(initial=0.0)))
        return willing, again_s

    def _put_off_s(
        self, seen: Snapshot, turns: Mapping[str, Turn], turn_s: FloatArray, starts_s: FloatArray
    ) -> FloatArray:
        """By query, how long it waits for a fuller batch; 0 where a batch now is better."""
        tuning = self._tuning
        empty = np.isnan(seen.age_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(
                seen.row_s > 0.0,
                np.maximum(0.0, (turn_s - seen.fixed_s) / seen.row_s),
                np.where(turn_s > seen.fixed_s, np.inf, 0.0),
            )
        now = ~seen.ready | seen.draining | (seen.rows >= room)
        takes_s = seen.takes_s(seen.fixed_s + seen.row_s * seen.rows, turns)
        done_s = np.where(empty, 0.0, seen.age_s) + seen.idle_s + takes_s
        worth_s = np.maximum(tuning.worth_at * seen.target_s - done_s, 0.0)
        later_s = np.where(np.isfinite(starts_s), np.maximum(starts_s, 0.0), worth_s)
        found: FloatArray = np.where(empty, _tick_s(seen), np.where(now, 0.0, later_s))
        return found

    def _starts_s(
        self,
        seen: Snapshot,
        turns: Mapping[str, Turn],
        batch_s: FloatArray,
        takes_s: FloatArray,
        ending: BoolArray,
        at: float,
    ) -> FloatArray:
        """By query, in how many seconds its next batch must begin at the latest.

        Each batch is counted longer by its usual error.

        Args:
            seen: All queries.
            turns: By class, how long its turns are.
            batch_s: By query, the machine time of its next batch.
            takes_s: By query, how long the tasks of that batch would take.
            ending: By query, whether its running batch is about to end.
            at: The part of the target after which the oldest row must be done.

        Returns:
            Infinite if at most one query has work: that query need not leave time for others.
        """
        has_turn = np.array([cls.name in turns for cls in seen.classes], np.bool_)[seen.cls]
        work = ~np.isnan(seen.age_s) & seen.ready & has_turn & (~seen.runs | ending)
        if int(work.sum()) <= 1:
            return np.full(work.size, np.inf)
        due_s = seen.target_s * at - seen.age_s - seen.idle_s - (takes_s - batch_s)
        return latest_starts(due_s, batch_s * (1.0 + seen.error), seen.priority, work, self.parallel)

    # -- what turns cost ------------------------------------------------------------------------

    def prices(self, running: Sequence[Query], now_s: float) -> dict[str, float]:
        """By class, the price so far of the running batches of some queries."""
        prices: dict[str, float] = {}
        for q in running:
            lease = q.lease
            assert lease is not None
            terms, learning = lease.terms, not q.cost.ready
            # batches that run beside each other count with all that they will have used
            expected_s = lease.use.expected_s
            seconds = lease.ran_s(now_s) if expected_s is None else expected_s
            price = self.turns.price(q.cls, seconds, terms.planned_s, terms.spare, learning)
            prices[q.cls] = prices.get(q.cls, 0.0) + price
        return prices

    def redistribute(self, seen: Snapshot, passed_s: float) -> Mapping[str, float]:
        """Divides the time between the classes anew.

        Args:
            seen: All queries.
            passed_s: How long ago the time was last divided.

        Returns:
            By class, the factor by which the capacity that it may claim has changed.
        """
        before = dict(self.capacity.claims)
        demands = demands_of(seen, [cls.name for cls in seen.classes], self._tuning)
        usages: dict[str, float | None] = {}
        for name, load in self.usage.measure(demands, self.turns.used_s, passed_s).items():
            share = max(self.capacity.shares[name], LEAST_SHARE)
            usages[name] = None if load is None else load / self.parallel / share
        self.capacity.report(usages)
        claims = {name: max(claim, LEAST_SHARE) for name, claim in self.capacity.claims.items()}
        self.turns.set_weights(claims)
        return {name: claim / max(before[name], LEAST_SHARE) for name, claim in claims.items()}


def _with_rows(seen: Snapshot, asking: BoolArray) -> tuple[BoolArray, float]:
    """Queries that want a batch now where any row is worth one, and in how many seconds the next one does."""
    wait_s = np.where(np.isnan(seen.age_s), _tick_s(seen), 0.0)
    willing: BoolArray = asking & (wait_s <= 0.0)
    return willing, float(wait_s[asking & ~willing].min(initial=math.inf))


def _tick_s(seen: Snapshot) -> FloatArray:
    """By query, how long to wait for a batch without rows; infinite where no windows wait for one."""
    tick_s = np.where(seen.draining, 0.0, seen.target_s / 2 - seen.quiet_s)
    found: FloatArray = np.where(seen.windows_wait, np.maximum(tick_s, 0.0), np.inf)
    return found


def _which(seen: Snapshot, queries: Sequence[Query]) -> BoolArray:
    """By query of a snapshot, whether it is one of some queries."""
    if not queries:
        return np.zeros(seen.rows.size, np.bool_)
    keys = {query.key for query in queries}
    return np.array([key in keys for key in seen.keys], np.bool_)
