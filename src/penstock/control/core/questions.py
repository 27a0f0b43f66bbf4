"""Open questions, and when a contest over a turn is worth holding."""

from __future__ import annotations

import math
from itertools import compress

from penstock.control.backlog.row_values import Fetch
from penstock.control.core.granting import PendingGrant
from penstock.control.schedule.scheduler import Verdict
from penstock.control.state.query import Query, Reader
from penstock.control.tuning import TUNING, Tuning


class Questions:
    """Who asks, and what came of the last contest.

    A contest looks at all queries. It is not held for every event: a verdict holds until something happens
    that could change it, or until the moment at which somebody wants a turn who did not before.

    Args:
        tuning: Figures.
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.open: dict[str, Query] = {}
        """By key, queries whose question waits for a grant."""
        self.pending: dict[str, tuple[PendingGrant, set[Fetch]]] = {}
        """By query, its grant that waits for values of rows, and the fetches that have no answer yet."""
        self.most_fixed_s = 0.0
        """The highest fixed cost of a batch, as last seen: so early a batch may begin before another ends."""
        self._contest_s = math.inf
        """On the timer, when a contest is worth holding."""
        self._judged: set[str] = set()
        """Queries that wanted a turn in the last contest, or did not want it yet."""
        self._judged_s = self._rows_count_s = -math.inf
        """On the timer, when the last contest was held, and from when on new rows are worth another one."""
        self.blocked = False
        """Whether there was no free slot when a contest was last worth holding: more rows change nothing."""
        self._tuning = tuning

    def put(self, query: Query, reader: Reader, now_s: float) -> bool:
        """A reader asks; returns whether its question can open a grant."""
        if query.question.leader is None:
            query.question.leader = reader.id
        if query.question.leader != reader.id:
            return False
        query.question.open, query.question.until_s = reader.id, math.inf
        self.open[query.key] = query
        if query.key not in self._judged:
            self._contest_s = now_s
        return True

    def answered(self, query: Query, now_s: float) -> None:
        """A question has its answer. The query counts as one that wants a turn for a moment longer."""
        query.question.open, query.question.until_s = None, now_s + self._tuning.stale_s
        self.open.pop(query.key, None)

    def withdrawn(self, query: Query) -> None:
        """A question cannot open a grant: the query does not want a turn."""
        query.question.open, query.question.until_s = None, -math.inf
        self.open.pop(query.key, None)

    def gone(self, query: Query, reader: str, now_s: float) -> None:
        """A reader asks no more; another one of its query leads from now on."""
        if query.question.open == reader:
            self.answered(query, now_s)
            self.pending.pop(query.key, None)
        query.question.leader = None

    # -- when to hold a contest -----------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """On the timer, when a contest is worth holding; infinite while nobody asks."""
        return self._contest_s if self.open else math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether a contest is worth holding now."""
        return self.due_s <= now_s

    def changed(self) -> None:
        """Something happened that may change whose turn it is."""
        self._contest_s, self.blocked = -math.inf, False
        self._judged.clear()

    def rows_arrived(self) -> None:
        """More rows wait than at the last contest: it is worth another one, though not for every arrival."""
        if self.blocked:
            return
        self._contest_s = min(self._contest_s, self._rows_count_s)

    def judged(self, verdict: Verdict) -> None:
        """A contest was held."""
        seen, self.blocked = verdict.schedule.seen, False
        self._judged_s = seen.at.timer_s
        self._judged = set(compress(seen.keys, seen.asks.tolist()))
        again_s, winner = verdict.again_s, verdict.winner
        if winner is not None and winner.question.open is None:  # it is next as soon as it asks
            self._judged.discard(winner.key)
            again_s = min(again_s, winner.question.until_s - self._judged_s)
        self.wait(self._judged_s, again_s)
        later_s = self._tuning.look_fraction * again_s if math.isfinite(again_s) else 0.0
        self._rows_count_s = self._judged_s + max(self._tuning.look_every_s, later_s)

    def block(self, now_s: float, seconds: float) -> None:
        """No slot is free. If nothing happens, a slot is free in so many seconds at the earliest."""
        self.wait(now_s, seconds)
        self.blocked = True

    def wait(self, now_s: float, seconds: float) -> None:
        """Nobody wants a turn now. If nothing happens, somebody does in so many seconds at the earliest."""
        self._contest_s = now_s + max(seconds, self._tuning.least_wait_s)
