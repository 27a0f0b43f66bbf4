"""What queries' results stand on: their SIC over the source time window, from what grants decided.

A query's SIC is the part of its sources' rows that was admitted, each source counting alike; of a source that
is a shared stream, times the SIC of the query that writes it, since operators conserve SIC. Rows that were
shed, late, expired or set aside, or that Spark's watermark dropped, are missing in it, whatever the cause.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.policies.quality.sic import SLIDE_S, SlidingSums, one_query_sic

_OFFERED, _KEPT = 0, 1
RECENT_BATCHES = 4
"""Spark says what it dropped of a micro-batch when that has ended, and a few may have been planned since."""


@dataclass(frozen=True, slots=True)
class QuerySic:
    """A query's SIC.

    Attributes:
        value: Over the source time window; `None` before its first batch.
        batch: Of its last micro-batch alone: the mean of the sources that had a part in it.
        silent: Streams that sent it nothing in the window.
    """

    value: float | None = None
    batch: float | None = None
    silent: tuple[str, ...] = ()


@dataclass(slots=True)
class _Batch:
    """A reader's part of a micro-batch: the numbers of its grant and of the batch, rows offered and kept."""

    grant: int
    number: int
    offered: float
    kept: float

    @property
    def fraction(self) -> float:
        return self.kept / self.offered if self.offered else 1.0


@dataclass(slots=True)
class _Source:
    """Rows of one reader: offered and kept, in the window, and of the last micro-batches."""

    stream: str
    sums: SlidingSums
    since_s: float | None = None
    """When its first micro-batch was planned."""
    came_s: float = -math.inf
    """When it last had new rows, decided about or not."""
    recent: deque[_Batch] = field(default_factory=lambda: deque(maxlen=RECENT_BATCHES))


@dataclass(slots=True)
class SicLedger:
    """The books by source time window.

    Attributes:
        stw_s: Its length.
        writers: By the id of a shared stream, the query that writes it.
    """

    stw_s: float
    writers: dict[str, str] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)
    """By token of a reader, the shared stream that its query writes."""
    _sources: dict[str, dict[str, _Source]] = field(default_factory=dict)
    """By query and reader."""
    _known: dict[str, QuerySic] = field(default_factory=dict)
    """By query, its SIC when it last had rows."""

    def shares(self, stream: str, tokens: Iterable[str]) -> None:
        """A query with these readers writes a shared stream."""
        self._tokens.update(dict.fromkeys(tokens, stream))

    def joined(self, token: str, query: str) -> None:
        """A reader of a query is there."""
        if token in self._tokens:
            self.writers[self._tokens[token]] = query

    def reads(self, query: str, reader: str, stream: str) -> None:
        """A query has a source: it counts from now on, also if it never sends anything."""
        self._source(query, reader, stream)

    def came(self, query: str, reader: str, now_s: float) -> None:
        """New rows of a source wait: it is not silent, however long it takes until they are decided about."""
        if (source := self._sources.get(query, {}).get(reader)) is not None:
            source.came_s = now_s

    def _source(self, query: str, reader: str, stream: str) -> _Source:
        sources = self._sources.setdefault(query, {})
        if reader not in sources:
            slides = max(1, round(self.stw_s / SLIDE_S))
            sources[reader] = _Source(stream, SlidingSums(2, self.stw_s, self.stw_s / slides))
        return sources[reader]

    def decided(
        self,
        now_s: float,
        query: str,
        reader: str,
        stream: str,
        offered: int,
        admitted: int,
        grant: int = 0,
        batch: int = 0,
    ) -> None:
        """A micro-batch is planned that decided about so many rows of a reader, and admits so many.

        Args:
            now_s: On the timer.
            query: Whose.
            reader: Which of its sources.
            stream: That it reads.
            offered: Rows that were decided about.
            admitted: Those that are processed.
            grant: The reader's number of it.
            batch: The query's number of it, which its readers share.
        """
        source = self._source(query, reader, stream)
        if source.since_s is None:
            source.since_s = now_s
        source.sums.add(now_s, np.array([_OFFERED, _KEPT]), np.array([offered, admitted], np.float64))
        source.recent.append(_Batch(grant, batch, float(offered), float(admitted)))

    def dropped(self, now_s: float, query: str, rows: Mapping[tuple[str, int], float]) -> float:
        """Spark's watermark has dropped admitted rows of a micro-batch as late.

        Args:
            now_s: On the timer. In the window they are missing from now on.
            query: Whose.
            rows: By reader and number of its grant; of micro-batches that are long past they are not booked.

        Returns:
            By how much the SIC of that micro-batch alone falls.
        """
        sources, lost = self._sources.get(query, {}), 0.0
        for (reader, grant), count in rows.items():
            source = sources.get(reader)
            batch = None if source is None else next((b for b in source.recent if b.grant == grant), None)
            if source is None or batch is None or not batch.kept:
                continue
            gone = min(count, batch.kept)
            batch.kept -= gone
            source.sums.add(now_s, np.array([_KEPT]), np.array([-gone]))
            parts = sum(any(b.number == batch.number for b in other.recent) for other in sources.values())
            lost += self.upstream(source.stream, now_s) * gone / batch.offered / parts
        return lost

    def gone(self, query: str, reader: str) -> None:
        """A reader has left."""
        self._sources.get(query, {}).pop(reader, None)

    def forget(self, query: str, tokens: Iterable[str]) -> None:
        """A query is gone for good; of one whose shared stream others may still read, the last SIC stays."""
        self._sources.pop(query, None)
        for token in tokens:
            self._tokens.pop(token, None)
        if query not in self.writers.values():
            self._known.pop(query, None)

    def of(self, query: str, now_s: float) -> QuerySic:
        """A query's SIC now. One that had no batch within a window keeps what it had; one that has stopped
        keeps all that was last known, so that a closing report says which of its streams were silent."""
        return self._of(query, now_s, set())

    def _of(self, query: str, now_s: float, above: set[str]) -> QuerySic:
        sources = self._sources.get(query, {})
        if not sources or query in above:  # a shared stream that is made of itself has no beginning
            return self._known.get(query, QuerySic())
        if all(source.since_s is None for source in sources.values()):  # it is there, and had no batch yet
            return self._known.get(query, QuerySic())
        kept, offered, heard, silent, parts = 0.0, 0.0, 0, [], []
        for source in sources.values():
            offered_rows, kept_rows = source.sums.sums(now_s).tolist()
            kept_rows = max(0.0, kept_rows)  # rows may leave the window before the word that they were lost
            upstream = self._upstream(source.stream, now_s, above | {query})
            if offered_rows > 0:
                heard += 1
                offered += 1.0
                kept += upstream * kept_rows / offered_rows
            elif now_s - source.came_s >= self.stw_s:
                silent.append(source.stream)
            if source.recent:
                parts.append((source.recent[-1].number, upstream * source.recent[-1].fraction))
        batch = _of_the_last(parts)
        if heard:
            value = one_query_sic(kept, offered, heard / len(sources))
            self._known[query] = QuerySic(value, batch, tuple(silent))
        return QuerySic(self._known.get(query, QuerySic()).value, batch, tuple(silent))

    def level(self, query: str, now_s: float, after_s: float) -> float | None:
        """A query's SIC over what will still be in the window so much later; of a source of which nothing
        will be, over all that is there: a slow one is not a lost one."""
        sources, kept, heard = self._sources.get(query, {}), 0.0, False
        for source in sources.values():
            offered_rows, kept_rows = source.sums.left(now_s, after_s).tolist()
            if offered_rows <= 0:
                offered_rows, kept_rows = source.sums.sums(now_s).tolist()
            if offered_rows > 0:
                heard = True
                kept += self.upstream(source.stream, now_s) * max(0.0, kept_rows) / offered_rows
        return kept / len(sources) if heard else self.of(query, now_s).value

    def window_rows(self, query: str, reader: str, now_s: float) -> float | None:
        """Rows of a reader that were decided about in a whole window; `None` if it is not there so long."""
        source = self._sources.get(query, {}).get(reader)
        if source is None or source.since_s is None or now_s - source.since_s < self.stw_s:
            return None
        return float(source.sums.sums(now_s)[_OFFERED]) or None

    def _upstream(self, stream: str, now_s: float, above: set[str]) -> float:
        writer = self.writers.get(stream)
        if writer is None:
            return 1.0
        value = self._of(writer, now_s, above).value
        return 1.0 if value is None else value

    def upstream(self, stream: str, now_s: float) -> float:
        """What part of its own sources a stream stands on: 1, but for shared streams."""
        return self._upstream(stream, now_s, set())

    def readers_of(self, query: str) -> list[str]:
        """The queries that read what a query writes."""
        streams = {stream for stream, writer in self.writers.items() if writer == query}
        return [
            other
            for other, sources in self._sources.items()
            if other != query and any(source.stream in streams for source in sources.values())
        ]


def _of_the_last(parts: Sequence[tuple[int, float]]) -> float:
    """The mean SIC of those with the highest number of a micro-batch: others had no part in it."""
    last = max(number for number, _ in parts)
    found = [sic for number, sic in parts if number == last]
    return sum(found) / len(found)
