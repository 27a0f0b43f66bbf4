"""Cases of CQL whose answers are known: what the bench `cql/conformance` says of right and wrong ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.benches import bench_module

pytestmark = pytest.mark.spark

CASES = {
    "last": ("SELECT * FROM S [PARTITION BY G ROWS 1]", "[1]:+:1, 5\n[2]:+:2, 5\n[3]:-:1, 5\n[3]:+:1, 7\n"),
    "sums": ("SELECT G, sum(A) FROM S GROUP BY G", "[1]:+:1, 5\n[2]:+:2, 5\n[3]:-:1, 5\n[3]:+:1, 13\n"),
    "no_such_column": ("SELECT B FROM S", "[1]:+:1\n"),
    "no_answer": ("SELECT A FROM S", None),
    "now": ("RSTREAM(SELECT G FROM S [NOW])", "[1]:+:1\n[2]:+:2\n"),
    "wrong_at_the_end": ("RSTREAM(SELECT G FROM S [NOW])", "[1]:+:1\n[2]:+:2\n[3]:+:8\n"),
}
"""The last sum of `sums` is wrong. Two cannot be run. STREAM leaves the last instant out, as `now` does."""


@pytest.fixture
def verdicts(spark: SparkSession, tmp_path: Path) -> dict[str, Any]:
    """By case, what came of it."""
    for part in ("queries", "data", "expected"):
        (tmp_path / part).mkdir()
    (tmp_path / "data" / "S.dat").write_text("i,i,i\n1,1,5\n2,2,5\n3,1,7\n")
    for name, (query, expected) in CASES.items():
        text = f"REGISTER STREAM S (G int, A int) FROM 'S'; {query}"
        (tmp_path / "queries" / f"{name}.cql").write_text(text)
        if expected is not None:
            (tmp_path / "expected" / f"{name}.gz").write_bytes(gzip.compress(expected.encode()))
    cases = bench_module("cql.conformance")
    return {case.name: cases.run_case(spark, case, 2, 2) for case in cases.cases_in(tmp_path)}


def test_wrong_tuples_are_counted_refused_cases_said_and_the_last_instant_compared_apart(
    verdicts: dict[str, Any],
) -> None:
    found = {n: (v.missing.total(), v.extra.total(), v.at_end.total(), v.passed) for n, v in verdicts.items()}
    assert found == {
        "last": (0, 0, 0, True),
        "no_answer": (0, 0, 0, False),
        "no_such_column": (0, 0, 0, False),
        "now": (0, 0, 1, True),
        "sums": (1, 1, 0, False),
        "wrong_at_the_end": (1, 1, 0, False),
    }
    assert list(verdicts["sums"].missing) == [(3, "+", (1, 13))]
    assert list(verdicts["sums"].extra) == [(3, "+", (1, 12))]
    assert "got: 'B'" in verdicts["no_such_column"].refused
    assert "has a file no_answer; got: none" in verdicts["no_answer"].refused
