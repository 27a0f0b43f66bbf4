"""The control plane as a process: a Unix socket, JSON lines, one governor. Imports no Spark.

`python -m penstock.control.server` reads its start-up message (one JSON line: address, configuration, run
directory) from standard input and lives until that is closed, so that it never outlives the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config import FlowConfig
from penstock.control.changing import change_class, remove_class
from penstock.control.client import PREFIX, VERSION, ControlClient, ControlSilentError
from penstock.control.governor import Governor
from penstock.control.members import Joining, Query
from penstock.control.memory import CostMemory
from penstock.control.recording import LiveRecorder
from penstock.control.replay import describe_manager
from penstock.control.retention import Trimmer
from penstock.control.rundir import RunDirectory
from penstock.control.status import closing_report, status
from penstock.control.what_if import Feasibility, plan
from penstock.errors import InvalidInputError, PenstockError
from penstock.grants.offset import Offset
from penstock.log.open import open_stream

_log = logging.getLogger(__name__)

HOLD_S, LONGEST_HOLD_S, QUESTIONS_PER_S = 0.1, 1.0, 40.0
"""A question is answered within the first, as Spark stops a query that waits for its source only slowly. Each
costs milliseconds in three processes, and thirty queries that only waited took half of two cores: where more
than so many would be asked in a second they are held longer."""
POLL_S, POLLS_PER_S = 0.01, 1000.0
"""Whether a question can be answered is looked at so often; less often where many wait."""
BEAT_S = 0.02


def hold_s(waiting: int, timeout_s: float = math.inf) -> float:
    """How long a question may be held while so many are; the one who asks takes longer for silence."""
    return min(max(HOLD_S, waiting / QUESTIONS_PER_S), LONGEST_HOLD_S, timeout_s / 2)


def poll_s(waiting: int) -> float:
    """How long until a held question is looked at again."""
    return max(POLL_S, waiting / POLLS_PER_S)


class ControlServer:
    """Serves one governor on a Unix socket.

    Args:
        address: `unix:///path`; the socket is made readable by its owner alone.
        governor: What decides.
    """

    def __init__(self, address: str, governor: Governor) -> None:
        self.path = Path(address.removeprefix(PREFIX))
        self.governor = governor
        self._wake = asyncio.Event()
        self._waiting = 0
        """Questions that are held."""
        self._stopping = asyncio.Event()
        self._trimmer = Trimmer(governor)
        self._feasibility = Feasibility(governor)
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until `stop`."""
        self.path.unlink(missing_ok=True)
        old_mask = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._accept, str(self.path), limit=1 << 22)
        finally:
            os.umask(old_mask)
        beat = asyncio.create_task(self._beat())
        try:
            await self._stopping.wait()
        finally:
            beat.cancel()
            server.close()
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            self.path.unlink(missing_ok=True)

    def stop(self) -> None:
        self._stopping.set()

    @staticmethod
    def answers(address: str) -> bool:
        """Whether somebody serves an address already."""
        client = ControlClient(address, timeout_s=2.0)
        try:
            client.connect()
            return True
        except ControlSilentError:
            return False
        finally:
            client.close()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                self.governor.beat()
                self._trimmer.beat()
                self._feasibility.beat()
            except OSError as error:
                _log.warning("costs were not written, or rows not trimmed; decisions go on: %s", error)
            except Exception:  # a manager that fails must not take the whole cluster's control with it
                _log.exception("a periodic decision failed; the previous ones stay in force")

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = object()
        try:
            while line := await reader.readline():
                answer = await self._answer(connection, line)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
            # stopping a query resets its planner's socket; a line beyond the limit is a ValueError
            _log.debug("a connection ended: %r", error)
        except Exception:  # the source takes it for silence, asks anew and at last goes on by itself
            _log.exception("a question was not answered")
        finally:
            self.governor.leave(connection)
            self._notify()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _notify(self) -> None:
        """Wakes all that wait for a turn."""
        self._wake.set()
        self._wake = asyncio.Event()

    async def _answer(self, connection: object, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
            if not isinstance(message, dict) or message.get("v") != VERSION:
                raise InvalidInputError(
                    f"a message is a JSON object with v = {VERSION}", line[:60], "use the same Penstock"
                )
            return await self._do(connection, message)
        except InvalidInputError as error:
            return {"error": {"rule": error.rule, "got": str(error.got), "hint": error.hint}}
        except PenstockError as error:
            return {
                "error": {"rule": "the control plane can do it", "got": str(error), "hint": "see its log"}
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {
                "error": {"rule": "a message is well formed", "got": repr(error), "hint": "see client.py"}
            }

    async def _do(self, connection: object, message: Mapping[str, Any]) -> dict[str, Any]:
        match message.get("op"):
            case "hello":
                log = open_stream(message["log"])
                offset = Offset.from_json(message["offset"])
                self.governor.join(
                    Joining(
                        **{k: message[k] for k in ("query", "cls", "name", "slot", "token")},
                        driver=message.get("driver", ""),
                    ),
                    log,
                    connection,
                    offset,
                )
                return {"ok": True}
            case "ask":
                return await self._ask(message)
            case "finish":
                self.governor.finish(message["reader"], Offset.from_json(message["start"]))
                self._notify()
                return {"ok": True}
            case "planned":
                return await self._planned(message)
            case "last_stage":
                self._last_stage(message)
                return {"ok": True}
            case "dropped":
                rows = {(r, int(grant)): float(n) for r, grant, n in message["rows"]}
                self.governor.dropped(int(message["batch"]), rows)
                return {"ok": True}
            case "plan":
                return {"plan": plan(self.governor)}
            case "status":
                return {"status": status(self.governor)}
            case "config":
                return {"config": self.governor.config_now().to_json()}
            case "change":
                change_class(self.governor, message["cls"], message["changes"])
                return {"floor_s": self.governor.floor_s(message["cls"])}
            case "remove":
                remove_class(self.governor, message["cls"])
                return {"ok": True}
            case "share":
                self.governor.share(message["stream"], message["cls"], message.get("tokens", ()))
                return {"ok": True}
            case "release":
                self.governor.segments.release(message["stream"])
                return {"ok": True}
            case "reads":
                self.governor.check_read(message["stream"], message["cls"])
                return {"ok": True}
            case "shedding":
                self.governor.shedding = bool(message["on"])
                return {"ok": True}
            case "forbid":
                who = message.get("reader") or message["token"]
                self.governor.forbidden[who] = (message["rule"], message["got"], message["hint"])
                return {"ok": True}
            case "windows":
                self.governor.windowed.update(message["tokens"])
                return {"ok": True}
            case "joined":
                return {"joined": Counter(reader.token for reader in self.governor.readers.values())}
            case "left":
                joined = Counter(reader.token for reader in self.governor.readers.values())
                mine = [query.key for query in self._queries(message)]
                return {"unfinished": [q for q in self.governor.unfinished() if q in mine], "joined": joined}
            case "refuse" | "drain" | "mark" as op:
                return self._command(op, message)
            case "stop":
                self.stop()
                return {"ok": True}
            case other:
                raise InvalidInputError("a message names a known operation", repr(other), "see server.py")

    def _command(self, op: str, message: Mapping[str, Any]) -> dict[str, Any]:
        if op == "mark":
            for governed in self.governor.classes.values():
                governed.plant.mark()
            return {"ok": True}
        queries = self._queries(message)
        for query in queries:
            if op == "refuse":
                query.refused = bool(message.get("on", True))
            else:
                query.draining = bool(message.get("on", True))
        self._notify()
        return {"running": [q.key for q in queries if q.lease is not None]}

    def _queries(self, message: Mapping[str, Any]) -> list[Query]:
        """Those of the driver that asks: the ones with a reader that has one of its tokens."""
        tokens = set(message["tokens"])
        found = self.governor.queries.values()
        return [q for q in found if any(reader.token in tokens for reader in q.readers.values())]

    def _last_stage(self, message: Mapping[str, Any]) -> None:
        """A batch has started its last stage; queries made from one DataFrame cannot be told apart."""
        queries = self._queries(message)
        if len(queries) == 1 and queries[0].lease is not None:
            queries[0].lease.start_last_stage(self.governor.timer(), message.get("batch"))
            self._notify()  # another may begin beside it

    async def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        reader_id = message["reader"]
        if self.governor.ask(reader_id, Offset.from_json(message["start"])):
            self._notify()  # a slot may be free now
        if message.get("all"):
            self.governor.take_all(reader_id)
        asked_s = time.monotonic()
        is_leader = self.governor.is_leader(reader_id)
        while True:
            answer = self.governor.answer(reader_id)
            if answer is not None:
                return {
                    "end": {str(p): position for p, position in answer.end.items()},
                    "late": {str(p): position for p, position in answer.late.items()},
                    "plan": answer.plan.to_json(),
                    "tick": answer.tick,
                    "sources": answer.sources,
                }
            if not is_leader or time.monotonic() - asked_s >= self._hold_s(message):
                # under AvailableNow a reader waits for its turn only if its question can open a grant
                return {"wait": True, "leads": is_leader} if message.get("all") else {"wait": True}
            await self._pause()

    async def _planned(self, message: Mapping[str, Any]) -> dict[str, Any]:
        offset = Offset.from_json(message["offset"])
        asked_s = time.monotonic()
        aside = message.get("aside", False)
        while not self.governor.planned(message["reader"], offset, message["admitted"], aside):
            if time.monotonic() - asked_s >= self._hold_s(message):
                return {"go": False}
            await self._pause()
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

    def _hold_s(self, message: Mapping[str, Any]) -> float:
        """How long a question may be held: one of a query that is about to be stopped is not held long."""
        if self.governor.is_refused(message["reader"]):
            return HOLD_S
        return hold_s(self._waiting, message.get("timeout_s", math.inf))


async def serve(start: Mapping[str, Any], until: asyncio.StreamReader | None = None) -> None:
    """Serves a control plane until a signal, or until a stream ends.

    Args:
        start: Its start-up message: address, config, run, record, memory.
        until: Lives as long as the driver does.
    """
    config = FlowConfig.from_json(start["config"])
    recorder = None
    if start.get("run"):
        managers = {name: describe_manager(cls.build_manager()) for name, cls in config.classes.items()}
        run = RunDirectory.create(start["run"], {**start["record"], "classes": managers})
        recorder = LiveRecorder(run)
    memory = CostMemory(Path(start["memory"])) if start.get("memory") else None
    governor = Governor(config, time.time, time.monotonic, recorder, memory)
    server = ControlServer(start["address"], governor)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)

    async def watch(stream: asyncio.StreamReader) -> None:
        await stream.read()  # ends when the driver does, however it does
        server.stop()

    watching = None if until is None else asyncio.create_task(watch(until))
    try:
        await server.run()
    finally:
        if watching is not None:
            watching.cancel()
        if recorder is not None:
            recorder.finish(closing_report(governor))


async def _start() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 22)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if line:
        await serve(json.loads(line), reader)


def run_control(start: Mapping[str, Any]) -> None:
    """Serves a control plane in this process until SIGINT or SIGTERM."""
    _log_to_stderr()
    asyncio.run(serve(start))


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=os.environ.get("PENSTOCK_LOG", "WARNING"), format="penstock control: %(message)s"
    )


def main() -> None:
    _log_to_stderr()
    asyncio.run(_start())


if __name__ == "__main__":
    main()
