"""Values that a plan takes from rows: each row's utility, or the number of its window, in whole columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.plans.coins import SCALE
from penstock.grants.plans.protocol import Numbers
from penstock.streams.protocol import ARRIVAL
from penstock.vocabulary.errors import InvalidInputError

Values = npt.NDArray[np.float64]

WORTHLESS = float(np.finfo(np.float64).min)
"""Utility of a row whose expression gives null or NaN: such a row is shed first."""

NO_WINDOW = int(np.iinfo(np.int64).min)
"""Window number of rows without a time: they are kept or shed together."""


def utilities(batches: Sequence[pa.RecordBatch], text: str) -> Values:
    """The utility of each row by an expression in CQL; always a finite number.

    All batches are computed at once, because there may be many batches of few rows.
    """
    from penstock.cql.scalar import compile_number  # sqlglot takes a while to import; most plans need none

    if not batches:
        return np.empty(0)
    number = compile_number(text, batches[0].schema)
    found = number.of(joined(batches, number.columns or (ARRIVAL,)))
    return np.nan_to_num(found, nan=WORTHLESS, posinf=-WORTHLESS, neginf=WORTHLESS)


def window_numbers(batches: Sequence[pa.RecordBatch], column: str, size_us: int) -> Numbers:
    """The window number of each row: time since the epoch / size, rounded down."""
    if not batches:
        return np.empty(0, np.int64)
    times = joined(batches, (column,)).column(column)
    if column != ARRIVAL:
        times = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
    filled: Numbers = times.fill_null(NO_WINDOW).to_numpy(zero_copy_only=False)
    return np.where(filled == NO_WINDOW, NO_WINDOW, filled // size_us)


def joined(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> pa.RecordBatch:
    """Joins some columns of several batches into one batch."""
    chosen = [rows.select(list(columns)) for rows in batches]
    return chosen[0] if len(chosen) == 1 else pa.concat_batches(chosen)


def keep_best(worth: Values, count: int) -> tuple[float, int]:
    """The `least` and `row_keep` of a `UtilityPlan` that keeps about `count` rows with most utility."""
    if count <= 0 or worth.size == 0:
        return -WORTHLESS, 0
    count = min(count, worth.size)
    least = float(np.partition(worth, worth.size - count)[worth.size - count])
    above, level = int((worth > least).sum()), int((worth == least).sum())
    return least, min(SCALE, max(1, round((count - above) / level * SCALE)))


def check_window_column(schema: pa.Schema, column: str, stream: str) -> None:
    """Refuses a column that is no timestamp."""
    if column == ARRIVAL:
        return
    if column not in schema.names or not pa.types.is_timestamp(schema.field(column).type):
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        raise InvalidInputError(
            f"windows are over a timestamp column of stream {stream}",
            repr(column),
            f"one of {', '.join(times)}" if times else "leave it out: windows are then by arrival",
        )
