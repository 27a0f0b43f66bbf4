"""Open questions, and when a contest over a turn is worth holding."""

from __future__ import annotations

import math
from itertools import compress

from penstock.control.backlog.row_values import Fetch
from penstock.control.core.granting import PendingGrant
from penstock.control.core.leases import Early
from penstock.control.schedule.scheduler import Verdict
from penstock.control.state.query import Query, Reader
from penstock.control.tuning import TUNING, Tuning


class Questions:
    """Keeps the open questions, and decides when the next contest over a turn is held.

    A contest looks at all queries, so it is not held for every event. A contest's verdict stays right until
    an event could change it, or until another query begins to want a turn.

    Args:
        tuning: Tuned constants.
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.open: dict[str, Query] = {}
        """By key, the queries whose question waits for a grant."""
        self.pending: dict[str, tuple[PendingGrant, set[Fetch]]] = {}
        """By query, a grant that waits for values of rows, and the fetches without an answer."""
        self.earliest = Early()
        """How long before others end the next batch may begin, whichever query it is of, as last seen."""
        self._contest_s = math.inf
        """The time, on the timer, of the next contest."""
        self._judged: set[str] = set()
        """Queries that were asking at the last contest, whether or not they wanted a turn at once."""
        self._judged_s = self._rows_count_s = -math.inf
        """The time, on the timer, of the last contest, and the time after which new rows lead to another."""
        self.blocked = False
        """Whether the last contest was due while no slot was free. New rows then lead to no contest."""
        self._tuning = tuning

    def put(self, query: Query, reader: Reader, now_s: float) -> bool:
        """Takes a reader's question. Returns whether the question can open a grant."""
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
        """Closes an answered question. The query counts as wanting a turn for `stale_s` longer."""
        query.question.open, query.question.until_s = None, now_s + self._tuning.stale_s
        self.open.pop(query.key, None)

    def withdrawn(self, query: Query) -> None:
        """Closes a question that cannot open a grant. The query does not want a turn."""
        query.question.open, query.question.until_s = None, -math.inf
        self.open.pop(query.key, None)

    def gone(self, query: Query, reader: str, now_s: float) -> None:
        """Forgets the question of a reader that has left. Another reader of the query leads from now on."""
        if query.question.open == reader:
            self.answered(query, now_s)
            self.pending.pop(query.key, None)
        query.question.leader = None

    # -- when to hold a contest -----------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """The time, on the timer, of the next contest; infinite while no question is open."""
        return self._contest_s if self.open else math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether a contest must be held now."""
        return self.due_s <= now_s

    def changed(self) -> None:
        """Makes a contest due now, because an event may change the winner."""
        self._contest_s, self.blocked = -math.inf, False
        self._judged.clear()

    def rows_arrived(self) -> None:
        """Makes a contest due soon, because new rows wait. Not every arrival leads to a contest."""
        if self.blocked:
            return
        self._contest_s = min(self._contest_s, self._rows_count_s)

    def judged(self, verdict: Verdict) -> None:
        """Takes the verdict of a contest, and sets the time of the next contest."""
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
        """Notes that no slot is free, and that none will be free for some seconds unless an event comes."""
        self.wait(now_s, seconds)
        self.blocked = True

    def wait(self, now_s: float, seconds: float) -> None:
        """Sets the next contest to some seconds from now. Until then only an event can change the verdict."""
        self._contest_s = now_s + max(seconds, self._tuning.least_wait_s)
