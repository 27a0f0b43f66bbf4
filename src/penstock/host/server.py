"""The control plane as a process: a Unix socket, JSON lines, one governor. Imports no Spark.

`python -m penstock.host.server` reads its start-up message (one JSON line: address, configuration, run
directory) from standard input and lives until that is closed, so that it never outlives the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config.flow import FlowConfig
from penstock.control.core.feasibility import Feasibility
from penstock.control.core.governor import Governor
from penstock.control.core.retention import Trimmer
from penstock.control.core.status import closing_report
from penstock.control.measure.cost_store import CostMemory
from penstock.host.client import PREFIX, ControlClient, ControlSilentError
from penstock.host.operations import Operations
from penstock.host.wire import HINT, FromSource, Hello, parsed
from penstock.policies.load.base import describe_manager
from penstock.record.recording import LiveRecorder
from penstock.record.replay import manager_now
from penstock.record.rundir import RunDirectory
from penstock.vocabulary.errors import InvalidInputError, PenstockError, RefusedError

_log = logging.getLogger(__name__)

BEAT_S = 0.02


class ControlServer:
    """Serves one governor on a Unix socket.

    Args:
        address: `unix:///path`; the socket is made readable by its owner alone.
        governor: What decides.
    """

    def __init__(self, address: str, governor: Governor) -> None:
        self.path = Path(address.removeprefix(PREFIX))
        self.governor = governor
        self._stopping = asyncio.Event()
        self._operations = Operations(governor, self.stop)
        self._trimmer = Trimmer(governor)
        self._feasibility = Feasibility(governor)
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until `stop`."""
        if self.path.exists() and not self.path.is_socket():
            raise InvalidInputError(
                "the address of a control plane is a path of its own", f"{self.path}, a file", "name another"
            )
        self.path.unlink(missing_ok=True)  # a socket that a control plane which was killed left behind
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
            if self.path.is_socket():
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
            self._operations.notify()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, connection: object, line: bytes) -> dict[str, Any]:
        """The answer to a line.

        A message that is not understood is refused, and so is what a user may not do. Whatever else goes
        wrong here is an error of Penstock, which must not end a query: a source hears nothing, and goes on by
        itself at last; others hear what it was.
        """
        try:
            message = parsed(json.loads(line))
            call = self._operations.understood(connection, message)
        except InvalidInputError as error:
            if isinstance(error.__cause__, OSError):  # of the system, as "too many open files"
                raise error.__cause__ from None
            return _refused(error)
        except PenstockError as error:
            return _error("the control plane can do it", str(error))
        except (ValueError, RecursionError) as error:
            return _error("a message is one line of JSON", repr(error), HINT)
        by_source = isinstance(message, FromSource)
        refusals = RefusedError if by_source and not isinstance(message, Hello) else InvalidInputError
        try:
            answer = call()
            answer = await answer if inspect.isawaitable(answer) else answer
            return answer if isinstance(answer, dict) else {"ok": True}
        except refusals as error:
            return _refused(error)
        except Exception as error:
            if by_source:
                raise
            _log.exception("%s failed", type(message).__name__)
            return _error("the control plane can do it", repr(error))


def _error(rule: str, got: str, hint: str = "see its log") -> dict[str, Any]:
    return {"error": {"rule": rule, "got": got, "hint": hint}}


def _refused(error: InvalidInputError) -> dict[str, Any]:
    return _error(error.rule, str(error.got), error.hint)


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
        limit = config.record_mb * 1_000_000 or None
        run = RunDirectory.create(start["run"], {**start["record"], "classes": managers}, limit_bytes=limit)
        recorder = LiveRecorder(run)
    memory = CostMemory(Path(start["memory"])) if start.get("memory") else None
    governor = Governor(config, time.time, time.monotonic, recorder, memory)
    if recorder is not None:
        recorder.follow(lambda: {n: manager_now(cls.cycle.manager) for n, cls in governor.classes.items()})
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
