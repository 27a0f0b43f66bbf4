"""What messages ask of a governor. A message is understood first, and then carried out.

The two steps are apart because their errors are: a message that is not understood is its sender's mistake, an
error while it is carried out is Penstock's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from penstock.control.core.changes import change_class, remove_class
from penstock.control.core.feasibility import plan
from penstock.control.core.governor import Governor
from penstock.control.core.status import status
from penstock.control.state.members import Joining, Query
from penstock.grants.offset import Offset
from penstock.streams.opening import open_stream
from penstock.vocabulary.errors import InvalidInputError

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

    def understood(self, connection: object, message: Mapping[str, Any]) -> Call:
        """What a message asks for, with all that is in it; it is done when it is called."""
        governor = self.governor
        match message.get("op"):
            case "hello":
                log, offset = open_stream(message["log"]), Offset.from_json(message["offset"])
                names = {k: str(message[k]) for k in ("query", "cls", "name", "slot", "token")}
                joining = Joining(**names, driver=str(message.get("driver", "")))
                return lambda: governor.join(joining, log, connection, offset)
            case "ask" | "finish" as op:
                reader, start = str(message["reader"]), Offset.from_json(message["start"])
                if op == "finish":
                    return lambda: self._finish(reader, start)
                take_all, timeout_s = bool(message.get("all")), _timeout_s(message)
                return lambda: self._ask(reader, start, take_all, timeout_s)
            case "planned":
                reader, offset = str(message["reader"]), Offset.from_json(message["offset"])
                admitted, aside = int(message["admitted"]), bool(message.get("aside"))
                timeout_s = _timeout_s(message)
                return lambda: self._planned(reader, offset, admitted, aside, timeout_s)
            case "last_stage":
                tokens, number = set(message["tokens"]), message.get("batch")
                batch = None if number is None else int(number)
                return lambda: self._last_stage(tokens, batch)
            case "dropped":
                number = int(message["batch"])
                rows = {(str(r), int(grant)): float(n) for r, grant, n in message["rows"]}
                return lambda: governor.dropped(number, rows)
            case "granted":
                query = str(message["query"])
                return lambda: {"granted": governor.has_new_grant(query)}
            case "ping":
                return lambda: {"ok": True}
            case "plan":
                return lambda: {"plan": plan(governor)}
            case "status":
                return lambda: {"status": status(governor)}
            case "config":
                return lambda: {"config": governor.config_now().to_json()}
            case "change":
                cls, changes = str(message["cls"]), dict(message["changes"])
                return lambda: self._change(cls, changes)
            case "remove":
                cls = str(message["cls"])
                return lambda: remove_class(governor, cls)
            case "share" | "reads" as op:
                stream, cls = str(message["stream"]), str(message["cls"])
                if op == "reads":
                    return lambda: governor.check_read(stream, cls)
                tokens = set(message.get("tokens", ()))
                return lambda: governor.share(stream, cls, tokens)
            case "release":
                stream = str(message["stream"])
                return lambda: governor.segments.release(stream)
            case "shedding":
                on = bool(message["on"])
                return lambda: setattr(governor, "shedding", on)
            case "forbid":
                who = str(message.get("reader") or message["token"])
                why = (str(message["rule"]), str(message["got"]), str(message["hint"]))
                return lambda: governor.forbidden.update({who: why})
            case "windows":
                tokens = set(message["tokens"])
                return lambda: governor.windowed.update(tokens)
            case "joined":
                return lambda: {"joined": self._joined()}
            case "left":
                tokens = set(message["tokens"])
                return lambda: self._left(tokens)
            case "refuse" | "drain" as op:
                tokens, on = set(message["tokens"]), bool(message.get("on", True))
                return lambda: self._command(op, tokens, on)
            case "mark":
                return self._mark
            case "stop":
                return self._stop
            case other:
                raise InvalidInputError("a message names a known operation", repr(other), "see server.py")

    def _finish(self, reader: str, start: Offset) -> None:
        self._check_joined(reader)
        self.governor.finish(reader, start)
        self.notify()

    def _change(self, cls: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        change_class(self.governor, cls, changes)
        return {"floor_s": self.governor.floor_s(cls)}

    def _left(self, tokens: set[str]) -> dict[str, Any]:
        mine = [query.key for query in self._queries(tokens)]
        return {"unfinished": [q for q in self.governor.unfinished() if q in mine], "joined": self._joined()}

    def _joined(self) -> Counter[str]:
        """By token, readers that are there."""
        return Counter(reader.token for reader in self.governor.readers.values())

    def _mark(self) -> None:
        for governed in self.governor.classes.values():
            governed.plant.mark()

    def _command(self, op: str, tokens: set[str], on: bool) -> dict[str, Any]:
        queries = self._queries(tokens)
        for query in queries:
            if op == "refuse":
                query.refused = on
            else:
                query.draining = on
        self.notify()
        return {"running": [q.key for q in queries if q.lease is not None]}

    def _queries(self, tokens: set[str]) -> list[Query]:
        """Those of the driver that asks: the ones with a reader that has one of its tokens."""
        found = self.governor.queries.values()
        return [q for q in found if any(reader.token in tokens for reader in q.readers.values())]

    def _last_stage(self, tokens: set[str], batch: int | None) -> None:
        """A batch has started its last stage; queries made from one DataFrame cannot be told apart."""
        queries = self._queries(tokens)
        if len(queries) == 1 and queries[0].lease is not None:
            queries[0].lease.start_last_stage(self.governor.timer(), batch)
            self.notify()  # another may begin beside it

    def _check_joined(self, reader: str) -> None:
        """Ends the connection of a source whose reader has gone: it then says hello again."""
        if reader not in self.governor.readers:
            raise ConnectionResetError(f"reader {reader} has not joined")

    async def _ask(self, reader: str, start: Offset, take_all: bool, timeout_s: float) -> dict[str, Any]:
        self._check_joined(reader)
        if self.governor.ask(reader, start):
            self.notify()  # a slot may be free now
        if take_all:
            self.governor.take_all(reader)
        asked_s = time.monotonic()
        is_leader = self.governor.is_leader(reader)
        while True:
            answer = self.governor.answer(reader)
            if answer is not None:
                return answer.to_json()
            if not is_leader or time.monotonic() - asked_s >= self._hold_s(reader, timeout_s):
                # under AvailableNow a reader waits for its turn only if its question can open a grant
                return {"wait": True, "leads": is_leader} if take_all else {"wait": True}
            await self._pause()
            self._check_joined(reader)

    async def _planned(
        self, reader: str, offset: Offset, admitted: int, aside: bool, timeout_s: float
    ) -> dict[str, Any]:
        asked_s = time.monotonic()
        self._check_joined(reader)
        while not self.governor.planned(reader, offset, admitted, aside):
            if time.monotonic() - asked_s >= self._hold_s(reader, timeout_s):
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


def _timeout_s(message: Mapping[str, Any]) -> float:
    """How long the one who asks waits for an answer."""
    return float(message.get("timeout_s", math.inf))
