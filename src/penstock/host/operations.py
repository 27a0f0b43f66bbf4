"""What messages ask of a governor. A message is understood first, and then carried out.

The two steps are apart because their errors are: a message that is not understood is its sender's mistake, an
error while it is carried out is Penstock's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.control.core.changes import change_class, remove_class
from penstock.control.core.feasibility import plan
from penstock.control.core.governor import Governor
from penstock.control.core.status import status
from penstock.control.state.members import Joining, Query
from penstock.grants.offset import Offset
from penstock.host import wire
from penstock.host.wire import Message
from penstock.streams.opening import open_stream

HOLD_S, LONGEST_HOLD_S, QUESTIONS_PER_S = 0.1, 1.0, 40.0
"""A question is answered within the first, as Spark stops a query that waits for its source only slowly. Each
costs milliseconds in three processes, and thirty queries that only waited took half of two cores: where more
than so many would be asked in a second they are held longer."""
POLL_S, POLLS_PER_S = 0.01, 1000.0
"""Whether a question can be answered is looked at so often; less often where many wait."""

Call = Callable[[], object]
"""Carries a message out. It returns the answer, the promise of one, or anything else for "done"."""


def hold_s(waiting: int, timeout_s: float = math.inf) -> float:
    """How long a question may be held while so many are; the one who asks takes longer for silence."""
    return min(max(HOLD_S, waiting / QUESTIONS_PER_S), LONGEST_HOLD_S, timeout_s / 2)


def poll_s(waiting: int) -> float:
    """How long until a held question is looked at again."""
    return max(POLL_S, waiting / POLLS_PER_S)


class Operations:
    """Carries out what sources, drivers and users ask of a governor.

    Args:
        governor: What decides.
        stop: Ends the process.
    """

    def __init__(self, governor: Governor, stop: Callable[[], None]) -> None:
        self.governor, self._stop = governor, stop
        self._wake = asyncio.Event()
        self._waiting = 0
        """Questions that are held."""

    def notify(self) -> None:
        """Wakes all that wait for a turn."""
        self._wake.set()
        self._wake = asyncio.Event()

    def understood(self, connection: object, message: Message) -> Call:
        """What a message asks for, with all that is in it; it is done when it is called."""
        governor = self.governor
        match message:
            case wire.Hello():
                log = open_stream(message.log)
                joining = Joining(
                    message.query, message.name, message.cls, message.slot, message.token, message.driver
                )
                return lambda: governor.join(joining, log, connection, message.offset)
            case wire.Ask():
                return lambda: self._ask(message)
            case wire.Finish():
                return lambda: self._finish(message.reader, message.start)
            case wire.Planned():
                return lambda: self._planned(message)
            case wire.Granted():
                return lambda: {"granted": governor.has_new_grant(message.query)}
            case wire.LastStage():
                return lambda: self._last_stage(message.tokens, message.batch)
            case wire.Dropped():
                rows = {(reader, grant): count for reader, grant, count in message.rows}
                return lambda: governor.dropped(message.batch, rows)
            case wire.Ping():
                return lambda: {"ok": True}
            case wire.AskPlan():
                return lambda: {"plan": plan(governor)}
            case wire.AskStatus():
                return lambda: {"status": status(governor).to_json(bins=True)}
            case wire.AskConfig():
                return lambda: {"config": governor.config_now().to_json()}
            case wire.AskJoined():
                return lambda: {"joined": self._joined()}
            case wire.Change():
                return lambda: self._change(message.cls, message.changes)
            case wire.Remove():
                return lambda: remove_class(governor, message.cls)
            case wire.Share():
                return lambda: governor.share(message.stream, message.cls, message.tokens)
            case wire.Reads():
                return lambda: governor.check_read(message.stream, message.cls)
            case wire.Release():
                return lambda: governor.segments.release(message.stream)
            case wire.Shedding():
                return lambda: setattr(governor, "shedding", message.on)
            case wire.Forbid():
                why = (message.rule, message.got, message.hint)
                return lambda: governor.forbidden.update({message.who: why})
            case wire.Windows():
                return lambda: governor.windowed.update(message.tokens)
            case wire.Left():
                return lambda: self._left(message.tokens)
            case wire.Refuse() | wire.Drain():
                return lambda: self._command(message)
            case wire.Mark():
                return lambda: {"ok": True}
            case wire.Stop():
                return self._stop
            case other:
                raise TypeError(f"nobody carries out {other!r}")

    def _finish(self, reader: str, start: Offset) -> None:
        self._check_joined(reader)
        self.governor.finish(reader, start)
        self.notify()

    def _change(self, cls: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        change_class(self.governor, cls, changes)
        return {"floor_s": self.governor.floor_s(cls)}

    def _left(self, tokens: Collection[str]) -> dict[str, Any]:
        mine = [query.key for query in self._queries(tokens)]
        return {"unfinished": [q for q in self.governor.unfinished() if q in mine], "joined": self._joined()}

    def _joined(self) -> Counter[str]:
        """By token, readers that are there."""
        return Counter(reader.token for reader in self.governor.readers.values())

    def _command(self, message: wire.Refuse | wire.Drain) -> dict[str, Any]:
        queries = self._queries(message.tokens)
        for query in queries:
            if isinstance(message, wire.Refuse):
                query.refused = message.on
            else:
                query.draining = message.on
        self.notify()
        return {"running": [q.key for q in queries if q.lease is not None]}

    def _queries(self, tokens: Collection[str]) -> list[Query]:
        """Those of the driver that asks: the ones with a reader that has one of its tokens."""
        found = self.governor.queries.values()
        return [q for q in found if any(reader.token in tokens for reader in q.readers.values())]

    def _last_stage(self, tokens: Collection[str], batch: int | None) -> None:
        """A batch has started its last stage; queries made from one DataFrame cannot be told apart."""
        queries = self._queries(tokens)
        if len(queries) == 1 and queries[0].lease is not None:
            queries[0].lease.start_last_stage(self.governor.timer(), batch)
            self.notify()  # another may begin beside it

    def _check_joined(self, reader: str) -> None:
        """Ends the connection of a source whose reader has gone: it then says hello again."""
        if reader not in self.governor.readers:
            raise ConnectionResetError(f"reader {reader} has not joined")

    async def _ask(self, message: wire.Ask) -> dict[str, Any]:
        reader = message.reader
        self._check_joined(reader)
        if self.governor.ask(reader, message.start):
            self.notify()  # a slot may be free now
        if message.all:
            self.governor.take_all(reader)
        asked_s = time.monotonic()
        is_leader = self.governor.is_leader(reader)
        while True:
            answer = self.governor.answer(reader)
            if answer is not None:
                return answer.to_json()
            if not is_leader or time.monotonic() - asked_s >= self._hold_s(reader, message.timeout_s):
                # under AvailableNow a reader waits for its turn only if its question can open a grant
                return {"wait": True, "leads": is_leader} if message.all else {"wait": True}
            await self._pause()
            self._check_joined(reader)

    async def _planned(self, message: wire.Planned) -> dict[str, Any]:
        asked_s, reader = time.monotonic(), message.reader
        self._check_joined(reader)
        while not self.governor.planned(reader, message.offset, message.admitted, message.aside):
            if time.monotonic() - asked_s >= self._hold_s(reader, message.timeout_s):
                return {"go": False}
            await self._pause()
            self._check_joined(reader)
        return {"go": True}

    async def _pause(self) -> None:
        """Until a slot may be free, or a moment has passed."""
        self._waiting += 1
        try:
            async with asyncio.timeout(poll_s(self._waiting)):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1

    def _hold_s(self, reader: str, timeout_s: float) -> float:
        """How long a question may be held: one of a query that is about to be stopped is not held long."""
        if self.governor.is_refused(reader):
            return HOLD_S
        return hold_s(self._waiting, timeout_s)
