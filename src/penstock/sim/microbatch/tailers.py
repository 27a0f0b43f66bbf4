"""Tailers in virtual time: who follows which stream, and when the control plane hears of what was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from penstock.streams.protocol import StreamLog
from penstock.streams.tailing import NewSegments, Tailer, furthest_back

Found = Callable[[str, list[NewSegments]], None]
"""Gets what is new of a stream."""


class VirtualTailers:
    """Looks at streams. A look at a slow stream takes virtual time, and holds up no other stream.

    What a look finds was there when the look began. The control plane hears of it when the look is over, and
    the next look begins at once, as in a thread of the stream's own.

    Args:
        now_s: The timer.
        found: Gets what is new.
    """

    def __init__(self, now_s: Callable[[], float], found: Found) -> None:
        self._now_s, self._found = now_s, found
        self.takes_s: Callable[[StreamLog], float] = _no_time
        """How long the calls took that were just made to a log."""
        self._tailers: dict[str, Tailer[StreamLog]] = {}
        """By the id of a stream."""
        self._under_way: dict[str, tuple[float, list[NewSegments]]] = {}
        """By stream, when its look is over, and what the look finds."""

    @property
    def logs(self) -> dict[str, StreamLog]:
        """By id, the streams that are followed."""
        return {stream: tailer.log for stream, tailer in self._tailers.items()}

    def follow(self, log: StreamLog, positions: Iterable[Mapping[int, int]]) -> None:
        """A reader needs the headers of a stream: it joins once they are there, however long that takes.

        Args:
            log: The stream.
            positions: Where this reader and all others of the stream stand.
        """
        stream = log.ref.id
        tailer = self._tailers.get(stream)
        if tailer is None or tailer.log is not log:
            tailer = self._tailers[stream] = Tailer(log)
        self._under_way.pop(stream, None)
        new = tailer.follow(furthest_back(positions))
        self.takes_s(log)
        if new:
            self._found(stream, new)

    def look(self) -> None:
        """Hands out what finished looks found, and looks at all streams that nobody looks at."""
        for stream, tailer in list(self._tailers.items()):
            over_s, found = self._under_way.get(stream, (-math.inf, []))
            if over_s > self._now_s():
                continue
            self._under_way.pop(stream, None)
            if found:
                self._found(stream, found)
            self._look_at(stream, tailer)

    def _look_at(self, stream: str, tailer: Tailer[StreamLog]) -> None:
        try:
            new = tailer.look()
        except OSError:  # the log is gone: what is known of it holds
            return
        took_s = self.takes_s(tailer.log)
        if took_s > 0:
            self._under_way[stream] = self._now_s() + took_s, new
        elif new:
            self._found(stream, new)

    def due_s(self) -> float:
        """On the timer, when the next look is over."""
        return min((over_s for over_s, _ in self._under_way.values()), default=math.inf)

    def clear(self) -> None:
        """Follows nothing any more."""
        self._tailers.clear()
        self._under_way.clear()


def _no_time(_: StreamLog) -> float:
    return 0.0
