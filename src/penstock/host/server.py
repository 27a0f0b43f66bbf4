"""The control plane's server: a Unix socket, JSON lines, one engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.control.core.engine import Engine
from penstock.control.core.events import Fetched
from penstock.control.core.instructions import FetchRows, Recorded, Tell
from penstock.host.aside import Aside, in_thread, looked_at
from penstock.host.client import PREFIX, ControlClient, ControlSilentError
from penstock.host.desk import Desk, HungUpError, Question
from penstock.host.fetching import fetch_values
from penstock.host.holding import FETCH_S
from penstock.host.memory import costs_text, write_costs
from penstock.host.recorder import RunRecorder, write_line
from penstock.host.retention import EVERY_S, trim
from penstock.host.tailers import Tailers
from penstock.host.wire import HINT, AskStatus, FromSource, Hello, Left, Message, parsed
from penstock.streams.opening import load_stream, open_stream
from penstock.streams.protocol import StreamLog
from penstock.streams.tailing import NewSegments, furthest_back
from penstock.vocabulary.errors import InvalidInputError, RefusedError
from penstock.vocabulary.moment import Moment

_log = logging.getLogger(__name__)

CHORES_S = 1.0
"""Time between two rounds of chores: writing the learned costs, checking the tailers."""
FOLLOW_TIMEOUT_S = 4.0
"""Time limit for a stream whose headers are read. After it, the reader that wanted to join fails open."""
LOOK_TIMEOUT_S = 1.0
"""Longest time that a status waits for a new look at the streams. Later, it tells what was known before."""
LINE_BYTES = 1 << 22
"""Most bytes of a message. The server closes a connection that sends a longer line."""
SEND_S = 10.0
"""A client that does not read its answer within this time is taken to be gone."""


def now() -> Moment:
    """Returns the present time on both clocks."""
    return Moment(time.monotonic(), time.time())


class ControlServer:
    """Hosts an engine on a Unix socket.

    Only the thread of the event loop calls the engine. Other threads read logs, trim logs and write to disks.

    Args:
        address: `unix:///path`. Only the socket's owner may read it.
        engine: The engine, which decides.
        recorder: Keeps the record of the run.
        memory: The file that keeps the learned costs of queries.
    """

    def __init__(
        self,
        address: str,
        engine: Engine,
        recorder: RunRecorder | None = None,
        memory: Path | None = None,
    ) -> None:
        self.path, self.engine = Path(address.removeprefix(PREFIX)), engine
        self.desk = Desk(engine, now, self, self.stop)
        self._recorder, self._memory = recorder, memory
        self._stopping = asyncio.Event()
        self._tailers = Tailers(self._found, load_stream)
        self._arrived: deque[tuple[str, list[NewSegments]]] = deque()
        """Stream and new segments that tailers found, which the engine was not told of yet."""
        self._opening: dict[str, asyncio.Future[StreamLog]] = {}
        self._aside = Aside()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serves until `stop`."""
        if self.path.exists() and not self.path.is_socket():
            raise InvalidInputError(
                "the address of a control plane is a path of its own", f"{self.path}, a file", "name another"
            )
        self.path.unlink(missing_ok=True)  # a socket that a control plane which was killed left behind
        old_mask = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._accept, str(self.path), limit=LINE_BYTES)
        finally:
            os.umask(old_mask)
        self._loop = asyncio.get_running_loop()
        chores = asyncio.create_task(self._chores())
        try:
            await self._stopping.wait()
        finally:
            chores.cancel()
            server.close()
            self._tailers.close()
            if self._wake is not None:
                self._wake.cancel()
            await self._aside.end()
            if self.path.is_socket():
                self.path.unlink(missing_ok=True)

    def stop(self) -> None:
        self._stopping.set()

    @staticmethod
    def answers(address: str) -> bool:
        """Whether a control plane already serves an address."""
        client = ControlClient(address, timeout_s=2.0)
        try:
            client.connect()
            return True
        except ControlSilentError:
            return False
        finally:
            client.close()

    # -- the engine's time ----------------------------------------------------------------------

    def _schedule(self) -> None:
        """Sets the loop's timer to the time at which the engine wants to be woken."""
        loop, due_s = asyncio.get_running_loop(), self.engine.due_s()
        # the loop's clock is the timer; a moment that has passed is woken at once, though not in this call
        at_s = max(due_s, loop.time() + 0.001)
        if self._wake is not None:
            if due_s <= self._wake.when() <= at_s:
                return  # events that come one after the other do not put a wake off for ever
            self._wake.cancel()
        self._wake = loop.call_at(at_s, self._woke)

    def _woke(self) -> None:
        self._wake = None
        try:
            self.desk.wake()
        except (Exception, SystemExit):  # a failure here must not take the cluster's control with it
            _log.exception("a periodic decision failed; the previous ones stay in force")
        self._schedule()

    async def _chores(self) -> None:
        """Does periodic work: checks tailers, and has other threads write costs and trim logs."""
        self._schedule()
        batches, trimmed_s = -1, time.monotonic()
        while True:
            await asyncio.sleep(CHORES_S)
            try:
                self._tailers.check()
                self._tailers.keep(self._needed())
                done = self.engine.batches_done()
                if self._memory is not None and done != batches:
                    batches = done
                    self._aside.alone("costs", write_costs, self._memory, costs_text(self.engine.costs()))
                if self.engine.config.trim and time.monotonic() - trimmed_s >= EVERY_S:
                    trimmed_s = time.monotonic()
                    for stream, log in self._tailers.logs.items():
                        self._aside.alone(f"trim {stream}", trim, [log])
            except Exception:
                _log.exception("a chore failed; decisions go on")

    def _needed(self) -> dict[str, dict[int, int]]:
        """By stream, the position of its slowest reader. Readers that are about to join count, too."""
        found: dict[str, list[Mapping[int, int]]] = {}
        for stream, positions in self.engine.needed():
            found.setdefault(stream, []).append(positions)
        return {stream: furthest_back(positions) for stream, positions in found.items()}

    # -- the engine's hands ---------------------------------------------------------------------

    def _found(self, stream: str, new: list[NewSegments]) -> None:
        """Takes new segments from a tailer. The tailer calls this in the tailer's own thread."""
        self._arrived.append((stream, new))
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._take_in)

    def _take_in(self) -> None:
        """Tells the engine of all new segments that tailers found."""
        while self._arrived:
            stream, new = self._arrived.popleft()
            try:
                self.desk.rows_arrived(stream, new)
            except Exception:
                _log.exception("rows of %s were not taken in", stream)
        self._schedule()

    def fetch(self, wanted: FetchRows) -> None:
        """Reads rows that a shedder needs."""
        self._aside.start(self._fetch(wanted))

    async def _fetch(self, wanted: FetchRows) -> None:
        """Reads rows for a shedder, and tells the engine.

        If the rows cannot be read within `FETCH_S`, the grant is decided without the shedder.
        """
        stream, values = wanted.fetch.stream, None
        try:
            if (log := self._tailers.logs.get(stream)) is not None:
                values = await self._aside.within(FETCH_S, f"read {stream}", fetch_values, log, wanted.fetch)
        except TimeoutError:
            _log.warning("rows of %s were not read within %g s for a shedder", stream, FETCH_S)
        except Exception:
            _log.exception("rows of %s were not read for a shedder", stream)
        try:
            self.desk.handle(Fetched(now(), wanted.query, wanted.fetch, values))
        except Exception:
            _log.exception("rows of %s were read, and a grant was not decided", stream)
        self._schedule()

    def record(self, line: Recorded) -> None:
        """Writes a line into the run's record."""
        if self._recorder is not None:
            write_line(self._recorder, line.line)

    def tell(self, instruction: Tell) -> None:
        """Warns that an instruction for a driver is lost: drivers ask, but do not listen yet."""
        _log.warning(
            "driver %s was to be told %s; drivers do not listen yet", instruction.driver, instruction.what
        )

    # -- connections ----------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._aside.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = object()
        try:
            while line := await _read(reader):
                answer = await self._answer(connection, line)
                await _send(writer, json.dumps(answer).encode() + b"\n")
        except HungUpError as reason:
            _log.debug("a connection ended: %s", reason)
        except (Exception, SystemExit):  # the source takes it for silence, and at last goes on by itself
            _log.exception("a question was not answered")
        finally:
            self._leave(connection)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _leave(self, connection: object) -> None:
        try:
            self.desk.leave(connection)
        except Exception:
            _log.exception("a connection that ended was not booked")
        self._schedule()

    async def _answer(self, connection: object, line: bytes) -> dict[str, Any]:
        """Returns the answer to a line.

        The server refuses a message that it does not understand, and a command that its user may not give.
        Any other failure here is an error of Penstock, which must not end a query. The server then gives a
        source no answer, and the source in the end goes on without the control plane. A client that is not a
        source gets the error as its answer.
        """
        try:
            message = parsed(json.loads(line))
        except InvalidInputError as error:
            return _refused(error)
        except (ValueError, RecursionError) as error:
            return _error("a message is one line of JSON", repr(error), HINT)
        self._take_in()
        by_source = isinstance(message, FromSource)
        refusals = RefusedError if by_source and not isinstance(message, Hello) else InvalidInputError
        try:
            return await self._carry_out(connection, message)
        except refusals as error:
            if isinstance(error.__cause__, OSError):  # of the system, as "too many open files"
                raise error.__cause__ from None
            return _refused(error)
        except (Exception, SystemExit) as error:  # a policy that is built by a command may call sys.exit
            if by_source:
                raise
            _log.exception("%s failed", type(message).__name__)
            return _error("the control plane can do it", repr(error))
        finally:
            self._schedule()

    async def _carry_out(self, connection: object, message: Message) -> dict[str, Any]:
        if isinstance(message, Hello):
            await self._join(connection, message)
            return {"ok": True}
        if isinstance(message, AskStatus | Left):
            await self._look_now()
        answer = self.desk.carry_out(message)
        return await self._held(answer) if isinstance(answer, Question) else answer

    async def _look_now(self) -> None:
        """Waits until tailers have looked at all streams: a client that appends, then asks, sees its rows."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def looked() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ready.set)

        self._tailers.look_now(looked)
        await _within(LOOK_TIMEOUT_S, ready)

    async def _join(self, connection: object, message: Hello) -> None:
        """Lets a reader join. Before that, other threads open its stream and read the stream's headers."""
        try:
            async with asyncio.timeout(FOLLOW_TIMEOUT_S):
                log = await self._open(message.log)
                await self._join_stream(connection, message, log)
        except TimeoutError:  # silence, to a source; the tailers say which stream hangs
            raise HungUpError(f"stream {message.log} does not answer") from None

    async def _open(self, place: str) -> StreamLog:
        """Opens a stream in another thread.

        Readers of one stream share that thread: a stream that hangs takes one thread, not one per reader.
        """
        opening = self._opening.get(place)
        if opening is None:
            opening = self._opening[place] = asyncio.ensure_future(in_thread(open_stream, place))
            opening.add_done_callback(lambda _: self._opening.pop(place, None))
            opening.add_done_callback(looked_at)
        return await asyncio.shield(opening)

    async def _join_stream(self, connection: object, message: Hello, log: StreamLog) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self._loop = loop

        def told() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ready.set)

        stream = log.ref.id
        self.desk.expect(connection, stream, message.offset.end)
        give_up = self._tailers.follow(log, self._needed()[stream], told)
        try:
            await ready.wait()
            self._take_in()
            self.desk.join(connection, message, log)
        finally:
            give_up()

    async def _held(self, question: Question) -> dict[str, Any]:
        """Returns the answer to a question, or "nothing yet" once the question was held for its time."""
        if question.answer is None:
            answered = asyncio.Event()
            question.notify = answered.set
            self._schedule()
            if not await _within(question.hold_s, answered) and self.desk.is_being_decided(question):
                await _within(question.longest_s - question.hold_s, answered)
            self.desk.give_up(question)
        return question.to_json()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Returns the next line of a client; nothing at the end of its connection.

    Raises:
        HungUpError: The connection broke, or the line is longer than a message may be.
    """
    try:
        return await reader.readline()
    except (ConnectionError, ValueError) as error:
        # stopping a query resets its planner's socket; a line beyond the limit is a ValueError
        raise HungUpError(repr(error)) from error


async def _send(writer: asyncio.StreamWriter, line: bytes) -> None:
    """Writes a line, and waits until the client has read it, except for the part that fits into buffers.

    Raises:
        HungUpError: The connection broke, or the client does not read.
    """
    try:
        async with asyncio.timeout(SEND_S):
            writer.write(line)
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()  # what the client does not read would keep the connection
        raise HungUpError(f"a client has not read its answer for {SEND_S:g} s") from None
    except ConnectionError as error:
        raise HungUpError(repr(error)) from error


async def _within(seconds: float, happened: asyncio.Event) -> bool:
    """Waits for an event for at most some seconds. Returns whether the event has happened."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await happened.wait()
    return happened.is_set()


def _error(rule: str, got: str, hint: str = "see its log") -> dict[str, Any]:
    return {"error": {"rule": rule, "got": got, "hint": hint}}


def _refused(error: InvalidInputError) -> dict[str, Any]:
    return _error(error.rule, str(error.got), error.hint)
