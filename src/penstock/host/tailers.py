"""Follows streams in threads. A slow stream gets its own thread, so that it delays no other stream."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.streams.protocol import StreamLog
from penstock.streams.tailing import NewSegments, Tailer, furthest_back

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.02
"""Time between two looks at a stream. Targets are seconds; a look at a local log takes ten microseconds."""
BUSY_FRACTION = 0.1
"""Looks take at most this part of a core. With many streams, the time between two looks is longer."""
SLOW_S = 0.1
"""A stream gets its own thread after a look that took this long. Other streams are then looked at in time."""
HUNG_S = 2.0
"""If a look takes this long, the tailers log it, and open the stream anew in another thread."""
LONGEST_S = 300.0
"""Longest patience with a stream that hangs. Each try takes another thread, so patience doubles each time."""

Found = Callable[[str, list[NewSegments]], None]
"""Takes the new segments of a stream. A tailer's thread calls it, so it must not block."""
Open = Callable[[str], StreamLog]
"""Opens a stream anew by the id of its reference: a directory, or an address."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A request of a reader that is about to join.

    Attributes:
        positions: The positions of the slowest reader of its stream, the new reader included.
        ready: Called, in a tailer's thread, once the headers from these positions on were handed out.
        over: Whether the reader has stopped waiting.
    """

    positions: Mapping[int, int]
    ready: Callable[[], None]
    over: bool = False


@dataclass(slots=True, eq=False)
class _Following:
    """A stream that is followed.

    Attributes:
        given: The log that readers joined with.
        tailer: Finds the new segments of the log.
        asked: Requests that the tailer's thread has not taken yet.
        taken: Requests that the tailer's thread has taken and not yet fulfilled.
        warned: Whether the log says already that the stream cannot be looked at.
        patience_s: How long a look may take.
        looking: A lock that a thread holds while it looks.
        handing: A lock that a thread holds while it hands out segments.
        replaced: Whether this object has ended: it hands out nothing more.
    """

    given: StreamLog
    tailer: Tailer[StreamLog]
    asked: queue.SimpleQueue[_Asked] = field(default_factory=queue.SimpleQueue)
    taken: list[_Asked] = field(default_factory=list)
    warned: bool = False
    patience_s: float = field(default_factory=lambda: HUNG_S)
    looking: threading.Lock = field(default_factory=threading.Lock)
    handing: threading.Lock = field(default_factory=threading.Lock)
    replaced: bool = False

    def end(self) -> None:
        """Hands out nothing any more."""
        with self.handing:
            self.replaced = True


class _Sweep(threading.Thread):
    """Looks at some streams again and again."""

    def __init__(self, found: Found, streams: dict[str, _Following]) -> None:
        super().__init__(name="penstock-tailer", daemon=True)
        self._found, self.streams = found, streams
        self.looks_at: tuple[str, float] | None = None
        """The stream that the thread looks at, and the time when the look began."""
        self.slow: set[str] = set()
        """Streams with a look that took at least `SLOW_S`."""
        self.ends = threading.Event()
        self.awake = threading.Event()
        self.wanted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """Functions to call once the thread has looked at all its streams again."""

    def run(self) -> None:
        while not self.ends.is_set():
            began_s = time.thread_time()  # waiting for a disk takes no core
            self.awake.clear()
            wanted = []
            while not self.wanted.empty():
                wanted.append(self.wanted.get())
            for name, stream in list(self.streams.items()):
                if self.ends.is_set():
                    return
                if not stream.replaced and stream.looking.acquire(blocking=False):
                    try:
                        self._look(name, stream)
                    finally:
                        self.looks_at = None
                        stream.looking.release()
            for ready in wanted:
                ready()
            took_s = time.thread_time() - began_s
            self.awake.wait(max(LOOK_EVERY_S, took_s / BUSY_FRACTION))

    def _look(self, name: str, stream: _Following) -> None:
        began_s = time.monotonic()
        self.looks_at = name, began_s
        try:
            while not stream.asked.empty():
                stream.taken.append(stream.asked.get())
            taken = [asked for asked in stream.taken if not asked.over]
            if taken:
                new = stream.tailer.follow(furthest_back(asked.positions for asked in taken))
            else:
                new = stream.tailer.look()
        except BaseException as error:  # the stream is governed by what is known; the next look may go well
            if not stream.warned:
                stream.warned = True
                _log.warning(
                    "stream %s cannot be looked at, it is governed by what is known: %r", name, error
                )
            return
        if time.monotonic() - began_s >= SLOW_S:
            self.slow.add(name)
        with stream.handing:
            if stream.replaced:
                return
            if new:
                self._found(name, new)
        stream.taken.clear()
        for asked in taken:
            asked.ready()
        if stream.warned:
            stream.warned = False
            _log.warning("stream %s can be looked at again", name)


class Tailers:
    """Follows streams, and replaces threads that hang. All methods are called in one thread.

    Args:
        found: Takes new segments.
        reopen: Opens a stream anew whose log hangs.
    """

    def __init__(self, found: Found, reopen: Open) -> None:
        self._found, self._reopen = found, reopen
        self._streams: dict[str, _Following] = {}
        self._main = _Sweep(found, {})
        self._own: dict[str, _Sweep] = {}
        """By stream that was slow or hung, its own thread."""

    @property
    def logs(self) -> dict[str, StreamLog]:
        """By id, the logs of the streams that are followed."""
        return {name: stream.tailer.log for name, stream in self._streams.items()}

    def follow(
        self, log: StreamLog, positions: Mapping[int, int], ready: Callable[[], None]
    ) -> Callable[[], None]:
        """Follows a stream for a reader that is about to join.

        Args:
            log: The stream.
            positions: The positions of the slowest reader of the stream, the new reader included.
            ready: Called, in a tailer's thread, once the headers of waiting rows were handed out.

        Returns:
            A function. Call it when the reader no longer waits for `ready`.
        """
        name = log.ref.id
        stream = self._streams.get(name)
        if stream is None or stream.given is not log:  # a stream made anew in the same place is another one
            stream = self._begin(name, log)
        asked = _Asked(dict(positions), ready)
        stream.asked.put(asked)
        sweep = self._own.get(name, self._main)
        sweep.awake.set()
        if sweep.ident is None:
            sweep.start()

        def give_up() -> None:
            asked.over = True

        return give_up

    def look_now(self, ready: Callable[[], None]) -> None:
        """Looks now at all streams that are not slow.

        Args:
            ready: Called after the look in the tailer's thread, or at once if no stream is followed. It is
                never called if a log hangs.
        """
        if self._main.ident is None or not self._main.streams:
            ready()
            return
        self._main.wanted.put(ready)
        self._main.awake.set()

    def _begin(self, name: str, log: StreamLog) -> _Following:
        self._forget(name)
        stream = self._streams[name] = _Following(log, Tailer(log))
        self._main.streams = {**self._main.streams, name: stream}
        return stream

    def _forget(self, name: str) -> None:
        if (stream := self._streams.pop(name, None)) is not None:
            stream.end()
        if (own := self._own.pop(name, None)) is not None:
            own.ends.set()
            own.awake.set()
        self._main.streams = {n: s for n, s in self._main.streams.items() if n != name}

    def keep(self, needed: Mapping[str, Mapping[int, int]]) -> None:
        """Stops following all streams but some.

        Args:
            needed: By stream to follow, the positions of its slowest reader.
        """
        for name in self._streams.keys() - needed.keys():
            self._forget(name)
        for name, stream in self._streams.items():
            stream.tailer.first = dict(needed[name])

    def check(self) -> None:
        """Replaces threads that hang or have died, and gives each slow stream a thread.

        The server calls this every second.
        """
        now_s = time.monotonic()
        for name in self._main.slow & self._main.streams.keys():
            self._move_out(name, self._streams[name])
        self._main.slow.clear()
        looks_at, dead = self._main.looks_at, _is_dead(self._main)
        if dead or (looks_at is not None and now_s - looks_at[1] >= HUNG_S):
            self._main.ends.set()
            self._main = _Sweep(self._found, self._main.streams)
            if looks_at is not None and looks_at[0] in self._main.streams:
                self._replace(looks_at[0], self._main.streams[looks_at[0]])
            self._main.start()
        for name, sweep in list(self._own.items()):
            stream, looks_at = self._streams[name], sweep.looks_at
            if _is_dead(sweep) or (looks_at is not None and now_s - looks_at[1] >= stream.patience_s):
                self._replace(name, stream)

    def _replace(self, name: str, stream: _Following) -> None:
        """Opens a stream that hangs anew, in its own thread. Nothing waits for the old thread."""
        if not stream.warned:
            _log.warning(
                "stream %s does not answer for %g s: it is governed by what is known, and opened anew",
                name,
                stream.patience_s,
            )
        stream.end()
        fresh = _Following(
            stream.given,
            _Reopening(lambda: self._reopen(name), stream.tailer),
            stream.asked,
            list(stream.taken),
            warned=True,
            patience_s=min(2 * stream.patience_s, LONGEST_S),
        )
        self._streams[name] = fresh
        self._move_out(name, fresh)

    def _move_out(self, name: str, stream: _Following) -> None:
        """Gives a stream its own thread."""
        self._main.streams = {n: s for n, s in self._main.streams.items() if n != name}
        if (before := self._own.pop(name, None)) is not None:
            before.ends.set()
        self._own[name] = _Sweep(self._found, {name: stream})
        self._own[name].start()

    def close(self) -> None:
        """Stops following all streams."""
        for stream in self._streams.values():
            stream.end()
        for sweep in (self._main, *self._own.values()):
            sweep.ends.set()
            sweep.awake.set()


class _Reopening(Tailer[StreamLog]):
    """A tailer that takes over from a tailer that hangs. It opens the log in its own thread."""

    def __init__(self, reopened: Callable[[], StreamLog], before: Tailer[StreamLog]) -> None:
        super().__init__(before.log)
        self._reopened: Callable[[], StreamLog] | None = reopened
        self.first = before.first

    def look(self) -> list[NewSegments]:
        if self._reopened is not None:
            self.log, self._reopened = self._reopened(), None
        return super().look()


def _is_dead(sweep: _Sweep) -> bool:
    """Whether a thread has ended although nobody asked it to end."""
    return sweep.ident is not None and not sweep.is_alive() and not sweep.ends.is_set()
