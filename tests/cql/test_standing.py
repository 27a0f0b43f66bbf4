"""What changes of a relation stand on, over the rows in its windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cql.brute import US
from tests.cql.cases import meant

from penstock.cql.meaning.lower import lowered
from penstock.spark.cql.standing import Standing, longest_us


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("SELECT sum(m) FROM T [RANGE 5 SECONDS]", 5),
        ("SELECT sum(m) FROM T [RANGE 5 SECONDS SLIDE 2 SECONDS]", 7),
        ("SELECT S.l FROM S [RANGE 3 SECONDS], T [RANGE 4 SECONDS] WHERE S.l = T.l", 4),
        ("SELECT sum(l) FROM ISTREAM(SELECT l FROM T [RANGE 3 SECONDS] WHERE m > 1) [RANGE 4 SECONDS]", 7),
        ("SELECT sum(m) FROM T [ROWS 3]", None),
        ("SELECT sum(m) FROM T", None),
    ],
)
def test_windows_over_results_of_windows_reach_back_by_both(text: str, seconds: int | None) -> None:
    assert longest_us(lowered(meant(text).plan)) == (None if seconds is None else seconds * US)


ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40), st.sampled_from([1.0, 0.5, 0.25])), max_size=30
)


@given(ROWS, st.sampled_from([None, 0, 5, 12]), st.integers(1, 4))
def test_it_is_the_part_of_the_rows_of_the_window_wherever_steps_end(
    rows: list[tuple[int, int, float]], length: int | None, steps: int
) -> None:
    standing = Standing(2, length)
    found: dict[int, float] = {}
    until = -1
    for step in range(steps):
        came = [row for row in rows if row[1] * steps // 41 == step]
        columns = np.array(came, np.float64).reshape(-1, 3).T
        standing.add(columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2])
        asked = np.array([t for t in range(41) if t * steps // 41 == step], np.int64)
        found |= zip(asked.tolist(), standing.sic(asked).tolist(), strict=True)
        until = int(asked.max()) + 1
        standing.forget(until)
        again = Standing(2, length)
        again.load([standing.save()])
        standing = again
    for t, value in found.items():
        parts = []
        for leaf in range(2):
            inside = [
                k for of, at, k in rows if of == leaf and at <= t and (length is None or at >= t - length)
            ]
            if inside:
                parts.append(len(inside) / sum(1 / k for k in inside))
        assert value == pytest.approx(sum(parts) / len(parts) if parts else 1.0)


def test_of_windows_without_an_end_only_sums_are_kept() -> None:
    standing = Standing(1, None)
    for step in range(5):
        at = np.arange(step * 100, step * 100 + 100)
        standing.add(np.zeros(100, np.int64), at, np.full(100, 0.5))
        standing.forget(step * 100 + 90)
        assert standing.save().num_rows <= 11
    assert standing.sic(np.array([499])) == pytest.approx(0.5)
