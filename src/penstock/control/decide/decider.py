"""Decisions of the classes' managers: what they see, when they are asked, what a grant becomes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.control.backlog.waiting import Waiting, profile
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.turns import Turn
from penstock.control.state.classes import GovernedClass
from penstock.control.state.guard import Guard
from penstock.control.state.members import Query
from penstock.vocabulary.model import Admission, BatchTiming, Decision, WaitingRows


class Decider:
    """Asks a class's manager, through its cycle.

    Args:
        classes: By name.
        queries: By key.
        paths: Where queries stand on the ways of their rows.
        look: Refreshes what waits for a query.
        turn_of: How long grants of a class's queries may be.
        clock: Seconds since the epoch.
        timer: Seconds that never go back.
        guard: Calls the managers.
    """

    def __init__(
        self,
        classes: Mapping[str, GovernedClass],
        queries: Mapping[str, Query],
        paths: Paths,
        look: Callable[[Query], Waiting],
        turn_of: Callable[[str], Turn],
        clock: Callable[[], float],
        timer: Callable[[], float],
        guard: Guard,
    ) -> None:
        self._classes, self._queries, self._look, self._turn_of = classes, queries, look, turn_of
        self._paths, self._clock, self._timer, self._guard = paths, clock, timer, guard

    def grant(self, query: Query, waiting: Waiting, turn: Turn, shedding: bool) -> Admission:
        """What the class's manager lets in of what waits for this query."""
        governed = self._classes[query.cls]
        if governed.traits.gives_grants:
            ahead_s = self._ahead_s(governed, query)
            rows = profile(waiting)
            self.step(governed, query, replace(rows, arrival_s=rows.arrival_s - ahead_s), timing(query, turn))
            decision = governed.plant.decision
            grant = decision.grant if decision is not None else None
            if grant is not None:
                cut_s = min(self._clock(), grant.cut_s + ahead_s)
                grant = replace(grant, cut_s=cut_s, shed_before_s=grant.shed_before_s + ahead_s)
            # while its cost is learned a query takes what the row limit allows; and when the check refused
            # the decision, nothing is shed on a doubtful word
            if grant is None or not query.cost.ready:
                grant = Admission(self._clock(), -math.inf, 1.0)
        else:
            keep_fraction = governed.plant.keep_fraction if query.cost.ready else 1.0
            grant = Admission(self._clock(), -math.inf, keep_fraction)
        if not shedding or query.draining:
            grant = replace(grant, cut_s=self._clock(), shed_before_s=-math.inf, keep_fraction=1.0)
        return grant

    def _ahead_s(self, governed: GovernedClass, query: Query) -> float:
        """What the rows of a query have left to go after it, which counts as if it lay behind them."""
        return governed.plant.cls.delay_target_s * (1.0 - self._paths.due_fraction(query.key))

    def step(
        self, governed: GovernedClass, query: Query | None, waiting: WaitingRows, batch: BatchTiming | None
    ) -> None:
        """One turn of a class's cycle; `query` is the one to be granted, if there is one.

        A manager that raises an exception sheds nothing, and is asked again at the next turn.
        """
        plant = governed.plant
        self._guard.call(
            f"class {governed.name}: its manager {governed.config.manager}",
            lambda: self._step(governed, query, waiting, batch),
            lambda error: plant.apply(Decision(plant.next_id - 1, 1.0, f"the manager failed: {error!r}")),
            "nothing is shed until it decides",
        )

    def _step(
        self, governed: GovernedClass, query: Query | None, waiting: WaitingRows, batch: BatchTiming | None
    ) -> None:
        queries = sorted((q for q in self._queries.values() if q.cls == governed.name), key=lambda q: q.key)
        waiting_rows = {q.key: self._look(q).rows for q in queries if q.readers and q is not query}
        if query is not None and query.waiting is not None:
            waiting_rows[query.key] = query.waiting.rows
        turn = self._turn_of(governed.name)
        governed.plant.prepare(
            self._clock(),
            self._timer(),
            [q.key for q in queries if q.readers],
            waiting,
            waiting_rows,
            {q.key: _row_cost_s(q, turn) for q in queries if q.cost.ready},
            sum(self._rest_s(q) for q in queries),
            batch,
        )
        governed.cycle.step()

    def _rest_s(self, query: Query) -> float:
        if query.lease is None or not query.cost.ready:
            return 0.0
        expected_s = query.cost.batch_s(query.lease.admitted)
        return max(0.0, expected_s - query.lease.ran_s(self._timer()))


def _row_cost_s(query: Query, turn: Turn) -> float:
    """Batch time that a row costs in a full batch, the fixed cost shared out."""
    length_s = max(turn.of(query.key), query.cost.fixed_s * 1.5)
    return length_s / max(1.0, query.cost.rows_in(length_s))


def timing(query: Query, turn: Turn) -> BatchTiming | None:
    """What a batch of a query costs, once that is known."""
    if not query.cost.ready or query.cost.row_s <= 0:
        return None
    length_s = max(turn.length_s, query.cost.fixed_s * 1.5)
    return BatchTiming(query.cost.fixed_s, query.cost.row_s, length_s, turn.cycle_s)
