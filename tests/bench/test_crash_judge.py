"""`spark/replay-crash` must be able to fail: what its judge counts as missing and as extra."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.bench import load_benches

Judge = Callable[[pa.Table, pa.Table], tuple[int, int]]


@pytest.fixture(scope="module")
def differences() -> Judge:
    bench = load_benches()["spark/replay-crash"]
    judge: Judge = vars(sys.modules[bench.function.__module__])["differences"]
    return judge


def table(*rows: tuple[int, int, float]) -> pa.Table:
    positions, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
    schema = pa.schema([("position", pa.int64()), ("k", pa.int64()), ("v", pa.float64())])
    return pa.table([list(positions), list(keys), list(values)], schema=schema)


PLANNED = [(1, 10, 0.1), (2, 20, 0.2), (5, 50, 0.5)]


@pytest.mark.parametrize(
    ("found", "missing", "extra"),
    [
        (PLANNED, 0, 0),
        (PLANNED[::-1], 0, 0),
        ([], 3, 0),
        (PLANNED[1:], 1, 0),
        ([*PLANNED, PLANNED[0]], 0, 1),
        ([*PLANNED, (3, 30, 0.3)], 0, 1),
        ([PLANNED[0], PLANNED[1], (5, 50, 0.4)], 1, 1),
        ([PLANNED[0], (2, 21, 0.2), (2, 20, 0.2)], 2, 2),
    ],
)
def test_rows_missing_twice_unplanned_or_changed_are_counted(
    differences: Judge, found: list[tuple[int, int, float]], missing: int, extra: int
) -> None:
    assert differences(table(*PLANNED), table(*found)) == (missing, extra)
