"""The SIC of queries over the source time window, computed from the decisions of grants.

A query's SIC is the admitted part of its sources' rows. All sources count alike. If a source is a shared
stream, its part is multiplied by the SIC of the query that writes the stream, because operators conserve SIC.
SIC does not count rows that were shed, late, expired or set aside, or that Spark's watermark dropped.
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
"""Number of micro-batches of a reader that are remembered. Spark reports the rows that it dropped from a
micro-batch when the micro-batch has ended; a few more micro-batches may have been planned by then."""


@dataclass(frozen=True, slots=True)
class QuerySic:
    """A query's SIC.

    Attributes:
        value: The SIC over the source time window; `None` before the query's first micro-batch.
        batch: The SIC of the last micro-batch alone: the mean over the sources that took part in it.
        silent: Streams without new rows for the query in the source time window.
    """

    value: float | None = None
    batch: float | None = None
    silent: tuple[str, ...] = ()


@dataclass(slots=True)
class _Batch:
    """A reader's part of a micro-batch.

    Attributes:
        grant: The reader's number of the grant.
        number: The query's number of the micro-batch.
        offered: Number of rows that the grant decided about.
        kept: Number of rows that the grant admitted and that Spark has not dropped.
    """

    grant: int
    number: int
    offered: float
    kept: float

    @property
    def fraction(self) -> float:
        return self.kept / self.offered if self.offered else 1.0


@dataclass(slots=True)
class _Source:
    """The rows of one reader: offered and kept rows in the window, and those of the last micro-batches."""

    stream: str
    sums: SlidingSums
    since_s: float | None = None
    """Time at which the reader's first micro-batch was planned."""
    came_s: float = -math.inf
    """Time at which new rows last arrived, whether or not a grant has decided about the rows."""
    recent: deque[_Batch] = field(default_factory=lambda: deque(maxlen=RECENT_BATCHES))


@dataclass(slots=True)
class SicLedger:
    """Counts the offered and kept rows of all queries over the source time window.

    Attributes:
        stw_s: Length of the source time window.
        writers: By id of a shared stream, the query that writes the stream.
    """

    stw_s: float
    writers: dict[str, str] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)
    """By token of a reader, the id of the shared stream that the reader's query writes."""
    _sources: dict[str, dict[str, _Source]] = field(default_factory=dict)
    """By query and reader, the rows of the reader."""
    _known: dict[str, QuerySic] = field(default_factory=dict)
    """By query, its SIC at the last time when its window had rows."""

    def shares(self, stream: str, tokens: Iterable[str]) -> None:
        """Books that the query of the readers with these tokens writes a shared stream."""
        self._tokens.update(dict.fromkeys(tokens, stream))

    def joined(self, token: str, query: str) -> None:
        """Books that a reader of a query has joined."""
        if token in self._tokens:
            self.writers[self._tokens[token]] = query

    def reads(self, query: str, reader: str, stream: str) -> None:
        """Books that a query has a source. The source counts from now on, even if it never sends a row."""
        self._source(query, reader, stream)

    def came(self, query: str, reader: str, now_s: float) -> None:
        """Books that new rows of a source wait. The source is not silent, even if no grant decides soon."""
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
        """Books a reader's part of a planned micro-batch.

        Args:
            now_s: The present time on the timer.
            query: The query.
            reader: The reader.
            stream: Id of the stream that the reader reads.
            offered: Number of rows that the grant decided about.
            admitted: Number of rows that the grant admits.
            grant: The reader's number of the grant.
            batch: The query's number of the micro-batch, the same for all readers of the query.
        """
        source = self._source(query, reader, stream)
        if source.since_s is None:
            source.since_s = now_s
        source.sums.add(now_s, np.array([_OFFERED, _KEPT]), np.array([offered, admitted], np.float64))
        source.recent.append(_Batch(grant, batch, float(offered), float(admitted)))

    def dropped(self, now_s: float, query: str, rows: Mapping[tuple[str, int], float]) -> float:
        """Books admitted rows that Spark's watermark has dropped as late.

        Args:
            now_s: The present time on the timer. The window lacks the dropped rows from now on.
            query: The query.
            rows: By reader and number of the grant, how many rows Spark dropped. Rows of micro-batches before
                the last `RECENT_BATCHES` are not booked.

        Returns:
            How much lower the SIC of the micro-batch alone is without the dropped rows.
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
        """Books that a reader has left."""
        self._sources.get(query, {}).pop(reader, None)

    def forget(self, query: str, tokens: Iterable[str]) -> None:
        """Forgets a query that is gone for good. If it wrote a shared stream, its last SIC stays known."""
        self._sources.pop(query, None)
        for token in tokens:
            self._tokens.pop(token, None)
        if query not in self.writers.values():
            self._known.pop(query, None)

    def of(self, query: str, now_s: float) -> QuerySic:
        """Returns a query's present SIC.

        A query without a micro-batch in the window keeps its last SIC. A query that has stopped also keeps
        the list of its silent streams, for the closing report.
        """
        return self._of(query, now_s, set())

    def _of(self, query: str, now_s: float, above: set[str]) -> QuerySic:
        sources = self._sources.get(query, {})
        if not sources or query in above:  # a shared stream may be computed from itself
            return self._known.get(query, QuerySic())
        if all(source.since_s is None for source in sources.values()):  # no reader had a micro-batch yet
            return self._known.get(query, QuerySic())
        kept, offered, heard, silent, parts = 0.0, 0.0, 0, [], []
        for source in sources.values():
            offered_rows, kept_rows = source.sums.sums(now_s).tolist()
            kept_rows = max(0.0, kept_rows)  # Spark may report dropped rows that have left the window already
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
        """Returns a query's level: its SIC over rows that will still be in the window `after_s` later.

        A source without such rows counts with all its rows in the window: it is slow, but not lost.
        """
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
        """Returns how many rows of a reader grants decided about in the last window.

        The number is `None` if the reader's first micro-batch was planned less than a window ago.
        """
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
        """Returns the SIC of a stream's rows: that of the query that writes a shared stream, else 1."""
        return self._upstream(stream, now_s, set())

    def readers_of(self, query: str) -> list[str]:
        """Returns the queries that read a shared stream of a query."""
        streams = {stream for stream, writer in self.writers.items() if writer == query}
        return [
            other
            for other, sources in self._sources.items()
            if other != query and any(source.stream in streams for source in sources.values())
        ]


def _of_the_last(parts: Sequence[tuple[int, float]]) -> float:
    """Returns the mean SIC over the sources that took part in the last micro-batch.

    Args:
        parts: By source, the number of its last micro-batch, and its SIC in that micro-batch.
    """
    last = max(number for number, _ in parts)
    found = [sic for number, sic in parts if number == last]
    return sum(found) / len(found)
