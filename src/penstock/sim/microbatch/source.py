"""A governed source in virtual time: asks, makes an offset of the answer, and says that Spark plans it.

It does what `penstock.spark.source` does, with the same functions for plans and books, but keeps no journal
and reads no rows. `Source` is the seam: tests put the real planner in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from penstock.grants.grant import Grant
from penstock.grants.offset import Books, Offset, limited
from penstock.grants.plans import KEEP_ALL
from penstock.grants.selection import Selection, fitted_plan, grant_books, select
from penstock.grants.sic import row_sic
from penstock.host.client import ControlSilentError
from penstock.sim.microbatch.line import Line, Pause, Waits
from penstock.streams.marks import marks_at
from penstock.streams.protocol import StreamIndex
from penstock.vocabulary.model import FloatArray

PAUSE_S = 0.1
"""Between questions to a control plane that is silent."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A batch that may start.

    Attributes:
        rows: Rows that its tasks process; none where it is set aside.
        arrival_s: When its rows arrived, a mean for each segment.
        counts: How many rows of each segment are processed.
        tasks: Into how many tasks the control plane has the rows divided; `None` if it does not say.
    """

    rows: int
    arrival_s: FloatArray = field(default_factory=lambda: np.empty(0))
    counts: FloatArray = field(default_factory=lambda: np.empty(0))
    tasks: int | None = None


class Source(Protocol):
    """What Spark's micro-batch loop asks of one source."""

    def connect(self, offset: Offset) -> None:
        """The query begins, or begins again, at an offset that Spark has logged."""
        ...

    def latest(self, start: Offset) -> Waits[Offset | None]:
        """`latestOffset`: the offset after the next grant; `None` for nothing new."""
        ...

    def plan(self, offset: Offset) -> Waits[Planned]:
        """`partitions`: Spark has logged the offset and plans its batch."""
        ...

    def commit(self, offset: Offset) -> None:
        """`commit`: the batch is done."""
        ...

    def lose(self) -> None:
        """Its connection to the control plane is lost."""
        ...

    def close(self) -> None:
        """The source's process ends: the query has stopped or crashed."""
        ...


@dataclass(slots=True)
class Attempts:
    """What outlives a source: how often Spark has planned its last grant, and what was set aside of it."""

    grant: int = 0
    count: int = 0
    poison: dict[int, int] = field(default_factory=dict)


class GovernedSource:
    """The source of one reader.

    Args:
        line: To the control plane.
        stw_s: The source time window.
        fail_open_after_s: Silence after which it goes on by itself.
        poison_after: Failures after which a grant is set aside; 0 for never.
        attempts: Outlives it.
        available_now: Whether it ends at the log's present end.
    """

    def __init__(
        self,
        line: Line,
        stw_s: float,
        fail_open_after_s: float,
        poison_after: int,
        attempts: Attempts,
        available_now: bool = False,
    ) -> None:
        self.line, self.log = line, line.log
        self._stw_us = round(stw_s * 1e6)
        self._fail_open_after_s = fail_open_after_s
        self._poison_after, self._attempts = poison_after, attempts
        self._until = ends_of(self.log) if available_now else None
        self._attempted: int | None = None
        self._selected: tuple[Offset, list[Selection]] | None = None
        self._silent_since_s: float | None = None
        self._first_rows = line.host.engine.tuning.first_rows
        self._alone_rows, self._sources = self._first_rows, 1

    def connect(self, offset: Offset) -> None:
        self.line.renew(offset)

    def latest(self, start: Offset) -> Waits[Offset | None]:
        if self._until is not None:
            return (yield from self._latest_available_now(start))
        given = yield from self._ask(start)
        return None if given is None else self._propose(start, *given)

    def _latest_available_now(self, start: Offset) -> Waits[Offset | None]:
        """Waits for its turn: "nothing new" would end the query before it is at the log's first end."""
        assert self._until is not None
        until = self._until
        while any(position > start.end.get(p, 0) for p, position in until.items()):
            given = yield from self._ask(start, take_all=True)
            if given is not None:
                answer, alone = given
                end = {p: max(start.end.get(p, 0), min(e, until.get(p, e))) for p, e in answer.end.items()}
                return self._propose(start, replace(answer, end=end), alone)
            if not self.line.leads:
                return None
        if not self.line.host.silent:
            self.line.finish(start)
        if start.grant == 0 or start.tick:
            return None
        return self._propose(start, Grant(start.end, {}, KEEP_ALL), False)  # closes the last windows

    def _ask(self, start: Offset, take_all: bool = False) -> Waits[tuple[Grant, bool] | None]:
        """A grant, and whether the source gave it to itself."""
        host = self.line.host
        if self._silent_since_s is None:
            self._silent_since_s = host.now_s()
        try:
            answer = yield from self.line.ask(start, take_all)
        except ControlSilentError:
            return (yield from self._ask_itself(start))
        self._silent_since_s = None
        if answer is None:
            return None
        self._sources = answer.sources
        return answer, False

    def _ask_itself(self, start: Offset) -> Waits[tuple[Grant, bool] | None]:
        assert self._silent_since_s is not None
        if self.line.host.now_s() - self._silent_since_s >= self._fail_open_after_s:
            end = limited(start.end, self._until or ends_of(self.log), self._alone_rows)
            if end != dict(start.end):
                return Grant(end, {}, KEEP_ALL, sources=self._sources), True
        yield Pause(PAUSE_S)
        return None

    def _propose(self, start: Offset, answer: Grant, alone: bool) -> Offset:
        draft = start.advanced(answer.end, answer.late, answer.plan, Books(), alone)
        sic = row_sic(self.log, draft.end, self._stw_us, answer.sources)
        draft = replace(
            draft, plan=fitted_plan(self.log, draft), sic=sic, marks=marks_at(self.log, draft.end)
        )
        selections = select(self.log, draft)
        books = grant_books(self.log, draft, selections)
        poison = self._attempts.poison.get(start.grant, 0)
        before = replace(
            start.books, admitted=start.books.admitted - poison, poison=start.books.poison + poison
        )
        offset = replace(draft, books=before.plus(books)).follows(start, poison > 0, books.admitted)
        self._selected = offset, selections
        self.line.host.tell("proposed", offset.reader, offset=offset)
        return offset

    def plan(self, offset: Offset) -> Waits[Planned]:
        selections = self._selections(offset)
        admitted = sum(int(s.kept.sum()) for s in selections)
        set_aside = self._attempt(offset)
        if not offset.ungoverned:
            self._alone_rows = max(self._first_rows, admitted)
        tasks = yield from self._say_planned(offset, admitted, set_aside)
        if set_aside:
            self._attempts.poison = {offset.grant: admitted}
            return Planned(0)
        return Planned(admitted, *_arrivals(self.log, selections), tasks)

    def _attempt(self, offset: Offset) -> bool:
        """Counts one more try of a grant in this process; returns whether there were too many."""
        tries = self._attempts
        if self._attempted != offset.grant:
            self._attempted = offset.grant
            tries.grant, tries.count = offset.grant, tries.count + 1 if tries.grant == offset.grant else 1
        return 0 < self._poison_after < tries.count

    def _say_planned(self, offset: Offset, admitted: int, set_aside: bool) -> Waits[int | None]:
        since_s = self.line.host.now_s()
        while True:
            try:
                return (yield from self.line.planned(offset, admitted, set_aside))
            except ControlSilentError:
                if self.line.host.now_s() - since_s >= self._fail_open_after_s:
                    return None
            yield Pause(PAUSE_S)

    def _selections(self, offset: Offset) -> list[Selection]:
        if self._selected is not None and self._selected[0] == offset:
            return self._selected[1]
        return select(self.log, offset)

    def commit(self, offset: Offset) -> None:
        """Nothing is trimmed here: no registry has to know."""

    def lose(self) -> None:
        self.line.lose()

    def close(self) -> None:
        self.line.close()


def ends_of(log: StreamIndex) -> dict[int, int]:
    """Where each partition of a log ends now."""
    return {p: log.end(p) for p in range(log.partitions)}


def _arrivals(log: StreamIndex, selections: list[Selection]) -> tuple[FloatArray, FloatArray]:
    times, counts = [np.empty(0)], [np.empty(0)]
    for s in selections:
        if s.first.size:
            headers = log.header_arrays(s.partition, int(s.first[0]), int(s.end[-1]), keys=False)
            at = np.searchsorted(headers.first_position, s.first, side="right") - 1
            times.append((headers.arrival_min_us[at] + headers.arrival_max_us[at]) / 2e6)
            counts.append(s.kept.astype(np.float64))
    return np.concatenate(times), np.concatenate(counts)
