"""Whose turn it is among the queries that want one, whether a batch is worth it yet, how long it may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.control.backlog.waiting import Waiting
from penstock.control.schedule.contest import Contest, next_batch_s
from penstock.control.schedule.demand import SLACK_FRACTION, STALE_S, demands_of
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.shares import LEAST_SHARE, Redistribution
from penstock.control.schedule.turns import Demand, Turn, Turns, plan_turns
from penstock.control.schedule.urgency import Job, Latest, latest_starts
from penstock.control.state.classes import GovernedClass
from penstock.control.state.guard import Guard, T
from penstock.control.state.members import Lease, Query
from penstock.policies.capacity import Candidate, HighestRate

OVERLAP_FIXED, GUESSED_OVERLAP_FIXED = 1.0, 0.5
"""A batch is granted so many of its fixed costs before the one that runs is expected to end: about as long as
a start and an end leave the cores idle. Longer ones make batches fight for the cores. The second figure is
for where the driver does not say when last stages start, so that nothing holds back a batch that comes early:
should the one that runs take longer than expected, its last stage waits until the other's tasks are done."""
PARALLEL_MEMORY_S = 10.0
LOOK_EVERY_S = 0.02
"""While a question is held, what waits is looked at no more often: over a large backlog a look takes a
millisecond, and a control plane that looked every time took a tenth of two cores."""
WORTH_AT = 0.5
"""Where no other query has work, a batch is worth starting when its oldest row would be done after so much of
the target."""
LATEST_AT = 0.85
"""Where others need the time, batches are put off, and fuller, until one of a lower class before them would
bring their oldest row to so much of the target."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A turn that begins; `spare` if no other class wanted it."""

    spare: bool


@dataclass(frozen=True, slots=True)
class _Won:
    """Who was next in a contest; with thirty queries it takes a millisecond, and all of them ask."""

    at_s: float
    among: tuple[str, ...]
    """Those that asked, and those whose batches ran."""
    key: str | None = None
    candidates: Sequence[Candidate] = ()
    classes: set[str] = field(default_factory=set)

    def holds(self, among: tuple[str, ...], now_s: float) -> bool:
        return among == self.among and now_s - self.at_s < LOOK_EVERY_S


class Scheduler:
    """Slots and turns over the queries of all classes.

    Args:
        classes: By name.
        queries: By key.
        turns: Who has used how much.
        capacity: Which part of the time each class has.
        slots: Batches that may run at once, beside those that are about to end.
        eager: Whether a batch is worth it as soon as a row waits.
        look: Refreshes what waits for a query.
        age_s: How old a row is that arrived at a moment.
        timer: Seconds that never go back.
        paths: Where queries stand on the ways of their rows.
        guard: Calls the policies.
    """

    def __init__(
        self,
        classes: Mapping[str, GovernedClass],
        queries: Mapping[str, Query],
        turns: Turns,
        capacity: Redistribution,
        slots: int,
        eager: bool,
        look: Callable[[Query], Waiting],
        age_s: Callable[[float], float],
        timer: Callable[[], float],
        paths: Paths,
        guard: Guard,
    ) -> None:
        self._paths, self._guard = paths, guard
        self._classes, self._queries, self.turns, self._slots = classes, queries, turns, slots
        self._capacity, self._eager = capacity, eager
        self._loads: dict[str, float] = {}
        """By class, what it usually asks for."""
        self._uses: dict[str, float] = {}
        """By class, seconds of batches that it usually has in a second."""
        self._used_s: dict[str, float] = {}
        """By class, what it had used when the time was last divided."""
        self._inside = {name: HighestRate() for name in classes}
        self._look, self._age_s, self._timer = look, age_s, timer
        self._parallel = 1.0
        """Batches that run at once while any does, on average: they overlap at their ends."""
        self._won: _Won | None = None
        """The last contest: it is held anew when others ask, or after a moment."""
        self._replays: dict[str, float] = {}
        """By query that waits to run a batch again, when it last asked for a slot."""

    def forget(self, query: str) -> None:
        """A query is gone for good."""
        self._replays.pop(query, None)

    def beat(self, passed_s: float) -> None:
        """Time has passed."""
        if held := len(self._held()):
            self._parallel += (held - self._parallel) * (1.0 - math.exp(-passed_s / PARALLEL_MEMORY_S))

    # -- slots ----------------------------------------------------------------------------------

    def _held(self) -> list[Query]:
        return [query for query in self._queries.values() if query.lease is not None]

    def takes_slot_again(self, query: Query, token: str) -> bool:
        """Whether a batch that is run again after a restart may begin; if not, it goes before all others.

        Leases of readers with the same token do not count: a self-join of one DataFrame plans both sides for
        one batch, and the second must not wait for the first.
        """
        besides = [any(not r.token or r.token != token for r in q.readers.values()) for q in self._held()]
        if sum(besides) >= self._slots:
            self._replays[query.key] = self._timer()
            return False
        self._replays.pop(query.key, None)
        return True

    def _ends_soon(self, running: Query, other: Query) -> bool:
        """Whether a batch ends about when another, granted now, would begin to need the cores.

        Starting a batch (offset log, planning, tasks) leaves the cores idle: it runs beside the end of the
        one before.
        """
        lease = running.lease
        if lease is None or lease.replay or not lease.logged or not (running.cost.ready and other.cost.ready):
            return False
        now, tail = self._timer(), running.tail
        expected_s = running.cost.batch_s(lease.admitted)
        rest_s, overlap = expected_s - lease.ran_s(now), GUESSED_OVERLAP_FIXED
        if tail.jobs:
            overlap = OVERLAP_FIXED
            if lease.jobs >= tail.jobs:
                rest_s = min(rest_s, tail.fraction * expected_s - (now - lease.last_stage_s))
        return rest_s <= overlap * other.cost.fixed_s

    def holds_back(self, query: Query) -> bool:
        """Whether a batch that was granted beside another must wait before it takes cores.

        Spark does not interrupt tasks. Those of a batch that comes early would keep the cores for which the
        last stage of the other then waits; so that one starts its last stage first.
        """
        held = self._held()
        if query.lease is None or query.lease.replay or len(held) <= self._slots:
            return False
        others = [(q.lease, q.tail) for q in held if q is not query and q.lease is not None]
        return any(lease.began_s <= query.lease.began_s and lease.jobs < tail.jobs for lease, tail in others)

    # -- is it worth it -------------------------------------------------------------------------

    def _willing(
        self,
        queries: Iterable[Query],
        waits: Mapping[str, Waiting],
        turns: Mapping[str, Turn],
        latest: Latest,
    ) -> list[Query]:
        """Those that want a batch now, from the lowest class up: what lower ones want, higher ones must be
        ahead of if it would make them late."""
        willing: list[Query] = []
        lower_s = below_s = 0.0
        priority = -math.inf
        for q in sorted(queries, key=lambda q: self._priority(q.cls)):
            if self._priority(q.cls) > priority:
                priority, lower_s = self._priority(q.cls), below_s
            if self._wants(q, waits[q.key], turns, latest, lower_s):
                willing.append(q)
                below_s = max(below_s, self._batch_s(q, turns) / self._parallel)
        return willing

    def _batch_s(self, query: Query, turns: Mapping[str, Turn]) -> float:
        """How long a query's next batch takes, and longer by its usual error."""
        return next_batch_s(query, turns[query.cls]) * (1.0 + query.cost.error)

    def _wants(
        self, query: Query, waiting: Waiting, turns: Mapping[str, Turn], latest: Latest, lower_s: float
    ) -> bool:
        """Whether a batch now is better than a fuller one a little later.

        Args:
            query: Which.
            waiting: What waits for it.
            turns: How long turns are.
            latest: When batches must begin at the latest.
            lower_s: The longest batch that a lower class wants to begin now.
        """
        target_s = self._target_s(query)
        quiet_s = self._timer() - query.done_s
        if waiting.oldest_s is None:  # a tick closes windows that the last rows have moved the watermark past
            return query.data_since_tick and (query.draining or quiet_s >= target_s / 2)
        if self._eager or not query.cost.ready or query.draining:
            return True
        if waiting.rows >= query.cost.rows_in(turns[query.cls].of(query.key)):
            return True
        if query.key in latest:
            return latest.starts_s[query.key] <= lower_s
        return self._age_s(waiting.oldest_s) + query.cost.batch_s(waiting.rows) >= WORTH_AT * target_s

    def _latest(self, turns: Mapping[str, Turn], ending: list[Query], at: float) -> Latest:
        """When the next batches must begin at the latest, each counted longer by its usual error.

        Args:
            turns: How long turns are.
            ending: Queries that run a batch which is about to end.
            at: Part of the target after which the oldest row is to be done.

        Returns:
            Empty where only one query has work: it need not make room for others.
        """
        jobs = []
        for q in self._queries.values():
            if q.waiting is None or q.waiting.oldest_s is None or q.cls not in turns or not q.cost.ready:
                continue
            if q.lease is None or q in ending:
                due_s = self._target_s(q) * at - self._age_s(q.waiting.oldest_s)
                jobs.append(Job(due_s, q.key, self._batch_s(q, turns), self._priority(q.cls)))
        return latest_starts(jobs, self._parallel) if len(jobs) > 1 else Latest()

    def _priority(self, cls: str) -> float:
        return self._classes[cls].plant.cls.priority

    # -- whose turn -----------------------------------------------------------------------------

    def is_next(self, query: Query) -> Granted | None:
        """The turn of a query that asks, if it is next; it is then begun.

        What waits is looked at only when there is a turn to be had.
        """
        query.pending_s = self._timer()
        held = self._held()
        ending = [q for q in held if self._ends_soon(q, query)]
        if not self._slot_is_free(held, ending):
            return None
        asking = [q for q in self._queries.values() if self._asks(q)]
        among = tuple(q.key for q in (*asking, *held, *ending))
        new = query.looked_s == -math.inf  # a new question is answered by what waits now
        if new or self._won is None or not self._won.holds(among, query.pending_s):
            self._won = self._hold_contest(among, asking, held, ending)
        won = self._won
        if won.key != query.key:
            return None
        self._won = None
        inside, candidates = self._inside[query.cls], won.candidates
        self._by_rate(lambda: inside.took(query.key, candidates), lambda _: None)
        busy = {q.cls for q in held if q not in ending}
        return Granted(self.turns.begin(query.cls, won.classes | busy, self._prices(ending)))

    def _hold_contest(
        self, among: tuple[str, ...], asking: list[Query], held: list[Query], ending: list[Query]
    ) -> _Won:
        """Who is next of those that ask."""
        # a query whose batch is about to end competes if it has another one's worth of rows waiting
        returning = [q for q in ending if len(held) >= self._slots and not q.refused]
        waits = {q.key: self._looked_at(q) for q in (*asking, *returning)}
        demands = self.demands(*(q.cls for q in asking if waits[q.key].rows or q.data_since_tick))
        turns = self._plan(demands)
        put_off = self._latest(turns, ending, LATEST_AT)
        willing = self._willing([*asking, *returning], waits, turns, put_off)
        wanting = [q for q in willing if q not in returning]
        if not wanting:
            return _Won(self._timer(), among)
        again = {q.cls for q in willing if q in returning and waits[q.key].rows}
        classes = {q.cls for q in wanting} | again
        room_s = {name: turns[name].length_s * demands[name].queries for name in turns}
        contest = Contest(
            wanting,
            # a class whose batch is about to end may be next again, with what that batch will have used
            self._prices(ending),
            turns,
            room_s,
            self.turns,
            # who may go first is by rows that would be lost, not by those that would be done a little later
            self._latest(turns, ending, 1.0 - SLACK_FRACTION),
            self._within(),
            self._priority,
            self._target_s,
            self._waited_s,
        )
        cls, able = contest.winner(classes)
        candidates = [_candidate(q) for q in able]
        key = None
        if cls is not None:
            inside = self._inside[cls]
            key = self._by_rate(lambda: inside.next_of(candidates), lambda _: able[0].key)
        return _Won(self._timer(), among, key, candidates, classes)

    def _by_rate(self, does: Callable[[], T], otherwise: Callable[[Exception], T]) -> T:
        """Asks for the order of queries inside a class."""
        return self._guard.call("highest rate", does, otherwise, "queries of a class go as they are named")

    def _within(self) -> set[str]:
        """Classes that usually use no more of the time than they may claim."""
        claims = self._capacity.claims.items()
        return {name for name, claim in claims if self._uses.get(name, 0.0) <= claim * self._parallel}

    def _slot_is_free(self, held: list[Query], ending: list[Query]) -> bool:
        """Whether a batch may begin beside those that run; one is about to end at most."""
        if len(held) - len(ending) >= self._slots or len(held) > self._slots:
            return False
        # who asks when its batch ends would take the slot again before one that waits for it hears of it
        return all(self._timer() - at_s > STALE_S for at_s in self._replays.values())

    def _prices(self, running: list[Query]) -> dict[str, float]:
        """By class, what the batches that run have cost so far."""
        prices: dict[str, float] = {}
        for q in running:
            prices[q.cls] = prices.get(q.cls, 0.0) + self._price_of(q)
        return prices

    def _looked_at(self, query: Query) -> Waiting:
        """What waits for a query, as it was a moment ago."""
        if query.waiting is None or self._timer() - query.looked_s >= LOOK_EVERY_S:
            return self._look(query)
        return query.waiting

    def _price_of(self, query: Query) -> float:
        """What the batch that a query runs has cost its class so far."""
        lease = query.lease
        assert lease is not None
        took_s = lease.ran_s(self._timer())
        return self.turns.price(query.cls, took_s, lease.planned_s, lease.spare, not query.cost.ready)

    def charge(self, query: Query, lease: Lease) -> None:
        """Books the batch that a query ran."""
        took_s = lease.ran_s(self._timer())
        self.turns.charge(query.cls, took_s, lease.planned_s, lease.spare, not query.cost.ready)

    def _waited_s(self, query: Query) -> float:
        """How long a query has waited for its turn.

        Since its last grant if its rows are older: where nothing is shed, rows of a low class may be old for
        ever, and it must not go first for that.
        """
        since_s = self._timer() - query.granted_s
        oldest_s = query.waiting.oldest_s if query.waiting is not None else None
        return min(self._age_s(oldest_s), since_s) if oldest_s is not None else 0.0

    def _target_s(self, query: Query) -> float:
        """The part of its class's target after which a query is to be done with a row."""
        return self._classes[query.cls].plant.cls.delay_target_s * self._paths.due_fraction(query.key)

    def _asks(self, query: Query) -> bool:
        able = query.lease is None and bool(query.readers) and not query.refused
        return able and self._timer() - query.pending_s <= STALE_S

    def turn(self, query: Query) -> Turn:
        """How long a grant of this query may be, among the classes that have work."""
        turn = self.turn_of(query.cls)
        return replace(turn, length_s=turn.of(query.key))

    def turn_of(self, cls: str) -> Turn:
        """The turns of a class."""
        return self._plan(self.demands(cls))[cls]

    def _plan(self, demands: Mapping[str, Demand]) -> dict[str, Turn]:
        """Turns by the classes' shares. What a class lent and needs is its own again at once."""
        shares = {}
        for name, demand in demands.items():
            share, claim = self._capacity.shares[name], self._capacity.claims[name]
            load = claim if demand.load is None else demand.load / self._parallel
            shares[name] = max(share, min(load, claim), LEAST_SHARE)
        return plan_turns(demands, shares, self._parallel)

    def redistribute(self, passed_s: float) -> Mapping[str, float]:
        """Divides the time anew, by what the classes ask for in a burst, usually, or by what they use, if
        that is more: among many queries batches cannot be as full as their targets allow.

        Args:
            passed_s: Since the last time.

        Returns:
            What the capacity that each class may claim was multiplied by.
        """
        before = dict(self._capacity.claims)
        for query in self._queries.values():
            if query.readers:
                self._look(query)
        usages: dict[str, float | None] = {}
        for name, demand in self.demands(*self._classes).items():
            weight = 1.0 - math.exp(-passed_s / demand.target_s)
            use = self._smooth(self._uses, name, self._use_since(name, passed_s), weight)
            if demand.load is None:
                usages[name] = None
                continue
            load = self._smooth(self._loads, name, demand.load, weight)
            share = max(self._capacity.shares[name], LEAST_SHARE)
            usages[name] = max(demand.burst, load, use) / self._parallel / share
        self._capacity.report(usages)
        claims = {name: max(claim, LEAST_SHARE) for name, claim in self._capacity.claims.items()}
        self.turns.set_weights(claims)
        return {name: claim / max(before[name], LEAST_SHARE) for name, claim in claims.items()}

    def _use_since(self, cls: str, passed_s: float) -> float:
        """Seconds of batches that a class had in a second since the time was last divided."""
        used_s = self.turns.used_s[cls]
        since_s = used_s - self._used_s.get(cls, used_s)
        self._used_s[cls] = used_s
        return since_s / passed_s if passed_s > 0.0 else 0.0

    @staticmethod
    def _smooth(usual: dict[str, float], cls: str, value: float, weight: float) -> float:
        before = usual.get(cls, value)
        usual[cls] = before + weight * (value - before)
        return usual[cls]

    def demands(self, *also: str) -> dict[str, Demand]:
        """What the classes with work ask for; those named are there whether or not they have any."""
        now = self._timer()
        return demands_of(self._classes, self._queries, now, self._age_s, also, self._paths.turns)

    def floor_s(self, cls: str) -> float | None:
        """The least target that a class could meet, by the measured fixed costs."""
        queries = [q for q in self._queries.values() if q.cost.ready and q.readers]
        mine = [q for q in queries if q.cls == cls]
        if not mine:
            return None
        # every query of the cluster takes a turn of twice its fixed cost before a row's own batch runs
        cycle_s = sum(2.0 * q.cost.fixed_s for q in queries)
        return cycle_s + max(2.0 * q.cost.fixed_s for q in mine)


def _candidate(query: Query) -> Candidate:
    """A query with the rows that a second of its next batch would process."""
    if not query.cost.ready:
        return Candidate(query.key, None)
    rows = query.waiting.rows if query.waiting is not None else 0
    return Candidate(query.key, rows / query.cost.batch_s(rows) if rows else 0.0)
