"""Sending rows to a stream as they come: batched, stamped when they are sent, flushed in the background."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import pyarrow as pa

from penstock.streams.columns import Rows, to_batch
from penstock.streams.descriptor import check_partition
from penstock.streams.hashing import key_buckets
from penstock.streams.protocol import AppendKey, StreamWriter
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnmetError, require_positive

_log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""Sends with more bytes are appended in several steps: a text column of one batch holds at most 2 GiB."""

NOTE_EVERY_S = 1.0
"""How often partitions that got no rows are told of sends; over Flight, each partition costs a call."""


@dataclass(slots=True)
class _Pending:
    """Rows of one partition that are not in the log yet."""

    sends: list[tuple[int, pa.RecordBatch, np.ndarray]] = field(default_factory=list)
    """For each send: its number, its rows, and the arrivals of the rows."""
    rows: int = 0
    since_s: float = 0.0

    def first(self) -> tuple[int, pa.RecordBatch, np.ndarray, int]:
        """The first sends that fit one batch: number of the last of them, rows, arrivals, count of sends."""
        count, size = 0, 0
        for _, rows, _ in self.sends:
            size += rows.nbytes
            if count and size > MOST_BYTES:
                break
            count += 1
        numbers, batches, arrivals_us = zip(*self.sends[:count], strict=True)
        return numbers[-1], pa.concat_batches(batches), np.concatenate(arrivals_us), count

    def done(self, count: int) -> None:
        """Forgets the first `count` sends, which are in the log now."""
        self.rows -= sum(rows.num_rows for _, rows, _ in self.sends[:count])
        del self.sends[:count]


class Producer:
    """Batches rows and appends them.

    When `send` raises, its rows were not taken. Rows that were taken stay in the producer until the log has
    them. If an append fails, the next `send`, `flush` or `close` tries again and raises if it fails again.

    With `writer`, sends are numbered: `next_batch` is the number of the next send. A new producer with the
    same writer continues at `next_batch`. After `close` or `flush` that is the send after the last one. After
    a crash it is the first send that may not be in the log with all its rows. Later sends may be in the log
    already, in partitions that were ahead of others; such partitions skip them. The same rows must be sent
    in the same order.

    Args:
        log: Stream that gets the rows.
        partition: Partition that gets the rows; by default the key decides, or partitions take turns.
        batch_rows: Number of rows at which a partition's batch is appended.
        linger_s: Longest time that a row waits for its batch to fill.
        writer: Name of the writer, which makes appends idempotent.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        log: StreamWriter,
        partition: int | None = None,
        batch_rows: int = 4096,
        linger_s: float = 0.05,
        writer: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if batch_rows < 1:
            raise InvalidInputError("batch_rows must be at least 1", batch_rows, "leave it out")
        require_positive("linger_s", linger_s, "seconds, for example 0.05")
        if partition is not None:
            check_partition(log, partition)
        self.log, self.partition, self.batch_rows, self.linger_s = log, partition, batch_rows, linger_s
        self.writer, self.clock = writer, clock
        self._targets = range(log.partitions) if partition is None else [partition]
        self._known = {p: -1 if writer is None else log.last_batch(writer, p) for p in self._targets}
        self._next = self._first_missing()
        self._noted, self._noted_s = dict(self._known), time.monotonic()
        self._turn = 0
        self._pending: dict[int, _Pending] = {}
        self._error: Exception | None = None
        self._closed = False
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(
            target=self._flush_lingering, name=f"producer {log.name}", daemon=True
        )
        self._thread.start()

    @property
    def next_batch(self) -> int:
        """Number of the next send."""
        with self._changed:
            return self._next

    @property
    def waiting_rows(self) -> int:
        """Rows that were taken and are not in the log yet."""
        with self._changed:
            return sum(pending.rows for pending in self._pending.values())

    def send(self, rows: Rows) -> None:
        """Takes rows (a batch, columns by name, or a list of rows) and stamps their arrival with now."""
        batch = to_batch(rows, self.log.append_schema, self.log.name)
        with self._changed:
            if self._closed:
                raise InvalidInputError("rows are sent to an open producer", "a closed one", "make another")
            if self._error is not None:
                self.flush()
            number, self._next = self._next, self._next + 1
            arrival_us = np.full(batch.num_rows, int(self.clock() * 1e6), np.int64)
            for p, part in self._split(batch, number):
                if part.num_rows and number > self._known[p]:
                    self._take(p, part, arrival_us[: part.num_rows], number)
            try:
                self._append([p for p, pending in self._pending.items() if pending.rows >= self.batch_rows])
            except Exception as error:  # the rows are taken, so the next call raises the error
                self._error = error
            self._changed.notify()

    def flush(self) -> None:
        """Appends all waiting rows."""
        with self._changed:
            self._error = None
            try:
                self._append(list(self._pending))
                self._note()
            except Exception as error:
                self._error = error
                raise

    def close(self) -> None:
        """Appends all waiting rows and stops; if rows could not be appended, the error says how many."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        self._thread.join()
        try:
            self.flush()
        except Exception as error:
            raise UnmetError(
                "a producer closes with all rows in the log",
                f"{self.waiting_rows} rows left: {error}",
                "remove the cause and call flush() again",
            ) from error

    def _first_missing(self) -> int:
        """Number of the first send that may be missing in the log, in any of its partitions."""
        known, count = self._known, len(self._targets)
        if self.log.key_column is not None or count == 1:
            first = min(known.values()) + 1
        else:  # each partition has its own sends, see _split
            first = min(last + 1 + (p - last - 1) % count for p, last in known.items())
        if (last := max(known.values())) >= first:
            _log.warning(
                "stream %s: sends %d to %d of %s are in the log in part; send the same rows again from %d on",
                *(self.log.name, first, last, self.writer, first),
            )
        return first

    def _split(self, batch: pa.RecordBatch, number: int) -> list[tuple[int, pa.RecordBatch]]:
        if len(self._targets) == 1:
            return [(self._targets[0], batch)]
        if self.log.key_column is not None:
            buckets = key_buckets(batch.column(self.log.key_column), self.log.key_buckets)
            at = buckets % len(self._targets)
            return [(p, batch.filter(pa.array(at == p))) for p in np.unique(at).tolist()]
        if self.writer is not None:  # by number: a repeated send must go to the same partition
            return [(number % len(self._targets), batch)]
        return [(self._turn, batch)]

    def _take(self, partition: int, part: pa.RecordBatch, arrival_us: np.ndarray, number: int) -> None:
        pending = self._pending.setdefault(partition, _Pending(since_s=time.monotonic()))
        pending.sends.append((number, part, arrival_us))
        pending.rows += part.num_rows

    def _append(self, partitions: list[int]) -> None:
        for p in partitions:
            pending = self._pending[p]
            while pending.sends:
                number, rows, arrival_us, count = pending.first()
                key = None if self.writer is None else AppendKey(self.writer, number)
                self.log.append(rows, p, key, arrival_us)
                pending.done(count)
                self._noted[p] = number
            del self._pending[p]
            self._turn = (p + 1) % len(self._targets)
        if time.monotonic() - self._noted_s >= NOTE_EVERY_S:
            self._note()

    def _note(self) -> None:
        """Notes the last send in partitions that got no rows of it.

        Without the note, a new producer would begin at the last send with rows for that partition.
        """
        self._noted_s = time.monotonic()
        if self.writer is None or self.log.key_column is None or len(self._targets) == 1 or not self._next:
            return
        key = AppendKey(self.writer, self._next - 1)
        nothing = pa.RecordBatch.from_pylist([], schema=self.log.append_schema)
        for p in self._targets:
            if p in self._pending or self._noted[p] >= key.batch:
                continue
            try:
                self.log.append(nothing, p, key)
                self._noted[p] = key.batch
            except PenstockError as error:
                # no row is lost; a new producer will have to send more rows again
                self._noted[p] = sys.maxsize  # warns once, and tries again only once the partition has rows
                _log.warning("stream %s: %s is not noted: %s", self.log.name, key, error)

    def _flush_lingering(self) -> None:
        with self._changed:
            while not self._closed:
                before_s = time.monotonic() - self.linger_s
                lingered = [p for p, pending in self._pending.items() if pending.since_s <= before_s]
                try:
                    if self._error is None:  # the caller's next call repeats an append that failed
                        self._append(lingered)
                except Exception as error:
                    self._error = error
                oldest_s = min((pending.since_s for pending in self._pending.values()), default=None)
                if oldest_s is None or self._error is not None:
                    self._changed.wait()
                else:
                    self._changed.wait(max(oldest_s + self.linger_s - time.monotonic(), 0.0))

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
