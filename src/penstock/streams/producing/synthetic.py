"""Appends rows to a stream at given times, for example of a trace, and makes synthetic rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.streams.columns import check_event_time, with_event_time
from penstock.streams.protocol import StreamWriter
from penstock.vocabulary.errors import InvalidInputError, require_positive
from penstock.vocabulary.mixing import STEP, mixed

MakeRows = Callable[[int, int], pa.RecordBatch]
"""Makes rows: arguments are the number of the first row and the number of rows."""

_NAP_S = 0.1
"""Longest sleep between two checks of the stop event."""


@dataclass(frozen=True, slots=True)
class Played:
    """Result of `play`.

    Attributes:
        rows: Number of rows that were appended.
        seconds: How long the play took.
        late_max_s: Longest time from a row's arrival stamp until the row was in the log.
        late_mean_s: Mean over batches of the same time, for the first row of each batch.
        stopped: Whether the play was stopped before its end.
    """

    rows: int
    seconds: float
    late_max_s: float
    late_mean_s: float
    stopped: bool


def play(
    log: StreamWriter,
    arrival_s: npt.ArrayLike,
    make_rows: MakeRows,
    partition: int = 0,
    speed: float = 1.0,
    event_time: str | None = None,
    batch_s: float = 0.02,
    batch_rows: int = 65536,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    stop: threading.Event | None = None,
) -> Played:
    """Appends rows at their times, in small batches, each row stamped with its exact arrival.

    Args:
        log: Stream that gets the rows.
        arrival_s: Arrival of each row after the beginning, in order.
        make_rows: Makes the rows.
        partition: Partition that gets the rows.
        speed: 2.0 plays in half the time.
        event_time: A timestamp column that is overwritten with the arrival.
        batch_s: Time between two batches.
        batch_rows: Most rows of a batch, which limits how much a late play catches up at once.
        clock: Seconds since the epoch.
        sleep: Waits for a number of seconds.
        stop: Ends the play when set.
    """
    wanted = np.asarray(arrival_s, np.float64)
    if wanted.ndim != 1 or not np.isfinite(wanted).all() or (np.diff(wanted, prepend=0.0) < 0).any():
        raise InvalidInputError(
            "arrivals are seconds, 0 or more, in order",
            f"{wanted.size} numbers that are not",
            "sort them",
        )
    require_positive("speed", speed, "1.0 keeps the recorded times")
    require_positive("batch_s", batch_s, "seconds, for example 0.02")
    check_event_time(log.append_schema, event_time)
    due_s = wanted / speed
    began_s, done, late_s, stopped = clock(), 0, [0.0], False
    while done < due_s.size:
        stopped = stop is not None and stop.is_set()
        if stopped:
            break
        now_s = clock() - began_s
        until = min(int(np.searchsorted(due_s, now_s, side="right")), done + batch_rows)
        if until <= done:
            sleep(min(max(float(due_s[done]) - now_s, batch_s), _NAP_S))
            continue
        stamps = np.rint((began_s + due_s[done:until]) * 1e6).astype(np.int64)
        rows = make_rows(done, until - done)
        log.append(with_event_time(rows, event_time, stamps), partition, None, stamps)
        late_s.append(clock() - began_s - float(due_s[done]))
        done = until
        if done < due_s.size and due_s[done] > now_s:  # the play is not late
            sleep(batch_s)
    mean_s = float(np.mean(late_s[1:])) if done else 0.0
    return Played(done, clock() - began_s, max(late_s), mean_s, stopped)


def arrivals_constant(rate_per_s: float, seconds: float) -> npt.NDArray[np.float64]:
    """Row i arrives at i / rate."""
    require_positive("rate_per_s", rate_per_s, "rows a second")
    return np.arange(round(rate_per_s * seconds)) / rate_per_s


def arrivals_poisson(rate_per_s: float, seconds: float, seed: int) -> npt.NDArray[np.float64]:
    """Independent arrivals at a mean rate."""
    require_positive("rate_per_s", rate_per_s, "rows a second")
    random = np.random.default_rng(seed)
    return np.sort(random.uniform(0.0, seconds, random.poisson(rate_per_s * seconds)))


def synthetic_rows(
    schema: pa.Schema, seed: int = 0, keys: int = 100, clock: Callable[[], float] = time.time
) -> MakeRows:
    """Makes rows for a schema; row n has the same values in whatever batch it is.

    Integers are 0 to 999 (or as far as the type goes), floats 0 to 1, strings `k0` to `k<keys-1>`, timestamps
    now: `play` and paced streams overwrite the event time with the exact arrival.
    """
    names = pa.array([f"k{i}" for i in range(keys)])
    salts: npt.NDArray[np.uint64] = np.random.default_rng(seed).integers(0, 2**63, len(schema), np.uint64)
    for field in schema:
        _column(field.type, np.zeros(0, np.uint64), names, clock)  # an unknown type is refused at once

    def make_rows(first: int, count: int) -> pa.RecordBatch:
        number = np.arange(first, first + count, dtype=np.uint64)
        columns = [
            _column(field.type, _mixed(number, salt), names, clock)
            for field, salt in zip(schema, salts, strict=True)
        ]
        return pa.record_batch(columns, schema=schema)

    return make_rows


def _column(
    kind: pa.DataType, mixed: npt.NDArray[np.uint64], names: pa.Array, clock: Callable[[], float]
) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(mixed % 2 == 1)
    if pa.types.is_integer(kind):
        most = 100 if kind.bit_width == 8 else 1000
        return pa.array((mixed % most).astype(np.int64)).cast(kind)
    if pa.types.is_floating(kind):
        return pa.array((mixed >> np.uint64(11)) / 2.0**53).cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return names.take(pa.array((mixed % len(names)).astype(np.int64))).cast(kind)
    if pa.types.is_timestamp(kind):
        now = np.full(mixed.size, int(clock() * 1e6), np.int64)
        return pa.array(now, pa.timestamp("us", kind.tz)).cast(kind, safe=False)
    raise InvalidInputError(
        "synthetic rows have numbers, booleans, strings and timestamps", str(kind), "make the rows yourself"
    )


def _mixed(number: npt.NDArray[np.uint64], salt: np.uint64) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014): 64 well-mixed bits of a row's number."""
    with np.errstate(over="ignore"):
        return mixed(salt + (number + np.uint64(1)) * np.uint64(STEP))
