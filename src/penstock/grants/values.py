"""What a plan looks up in rows: what each is worth, or the window it is in. Numbers, in whole columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.grants.plan import SCALE, Plan, kept_rows
from penstock.log.protocol import ARRIVAL

Values = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

WORTHLESS = float(np.finfo(np.float64).min)
"""What a row is worth whose utility is null or no number: it goes first."""

NO_WINDOW = int(np.iinfo(np.int64).min)
"""The window of rows without a time: they are kept or shed together."""


def utilities(rows: pa.RecordBatch, text: str) -> Values:
    """What each row is worth by an expression in CQL; always a finite number."""
    from penstock.cql.scalar import compile_number  # sqlglot takes a while to import; most plans need none

    found = compile_number(text, rows.schema)(rows)
    return np.nan_to_num(found, nan=WORTHLESS, posinf=-WORTHLESS, neginf=WORTHLESS)


def window_numbers(rows: pa.RecordBatch, column: str, size_us: int) -> Numbers:
    """The window of each row, aligned at the epoch: time / size, rounded down."""
    kind = rows.schema.field(column).type
    times = rows.column(column)
    if column != ARRIVAL:
        times = times.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    filled: Numbers = times.fill_null(NO_WINDOW).to_numpy(zero_copy_only=False)
    return np.where(filled == NO_WINDOW, NO_WINDOW, filled // size_us)


def kept_by_value(plan: Plan, rows: pa.RecordBatch, partition: int, first: int) -> npt.NDArray[np.bool_]:
    """Which of some rows in a row are kept by a plan that looks into them.

    Args:
        plan: Of unit `utility` or `window`.
        rows: As the log has them.
        partition: Theirs.
        first: The first one's position.
    """
    if plan.unit == "window":
        numbers = window_numbers(rows, plan.by, plan.size_us)
        return np.isin(numbers, np.array(plan.windows, np.int64))
    worth = utilities(rows, plan.by)
    kept: npt.NDArray[np.bool_] = worth > plan.least
    at = np.flatnonzero(worth == plan.least) if plan.row_keep else np.empty(0, np.int64)
    if at.size:
        kept[at] = kept_rows(plan, partition, first, first + rows.num_rows)[at]
    return kept


def keep_best(worth: Values, count: int) -> tuple[float, int]:
    """The plan's `least` and `row_keep` that keep about so many rows, the best ones.

    All rows above a level are kept, and by coins a part of those just at it.
    """
    if count <= 0 or worth.size == 0:
        return -WORTHLESS, 0
    count = min(count, worth.size)
    least = float(np.partition(worth, worth.size - count)[worth.size - count])
    above, level = int((worth > least).sum()), int((worth == least).sum())
    return least, min(SCALE, max(1, round((count - above) / level * SCALE)))


def check_window_column(schema: pa.Schema, column: str, stream: str) -> None:
    """Refuses a column that has no time."""
    if column == ARRIVAL:
        return
    if column not in schema.names or not pa.types.is_timestamp(schema.field(column).type):
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        raise InvalidInputError(
            f"windows are over a timestamp column of stream {stream}",
            repr(column),
            f"one of {', '.join(times)}" if times else "leave it out: windows are then by arrival",
        )
