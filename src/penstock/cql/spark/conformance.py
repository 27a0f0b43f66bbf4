"""Runs cases whose answers are known, tuple by tuple.

queries/NAME.cql     the streams with their data, REGISTER STREAM S (A int) FROM 'S1', and one query
data/S1.dat[.gz]     tuples
expected/NAME[.gz]   the answer; see `penstock.cql.datafiles` for both
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.cql.datafiles import UNIT_US, Element, find_file, plain_value, read_answer
from penstock.cql.engine.bag import INSTANT, SIGN
from penstock.cql.files import read_file
from penstock.cql.program import Program, tuples_read
from penstock.cql.spark.bounded import bounded
from penstock.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Case:
    """A query, its data and its answer."""

    name: str
    query: Path
    data: Path
    expected: Path


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a case.

    Attributes:
        case: Its name.
        partitions: Of the streams and of the state.
        batches: Micro-batches that it took.
        tuples: Elements of the expected answer.
        missing: Elements that the answer lacks.
        extra: Elements that it should not have.
    """

    case: str
    partitions: int
    batches: int
    tuples: int
    missing: Counter[Element]
    extra: Counter[Element]

    @property
    def wrong(self) -> int:
        return self.missing.total() + self.extra.total()


def cases_in(folder: Path, queries: Path | None = None) -> list[Case]:
    """The cases of a folder, by name.

    Args:
        folder: With `data` and `expected`.
        queries: Where the queries lie; its `queries` by default.

    Raises:
        InvalidInputError: There are none, or a part is missing.
    """
    where = folder / "queries" if queries is None else queries
    found = sorted(where.glob("*.cql"))
    if not found:
        raise InvalidInputError(f"{where} has queries", "none", "one file NAME.cql for each expected/NAME")
    return [
        Case(each.stem, each, folder / "data", find_file(folder / "expected", each.stem)) for each in found
    ]


def run_case(spark: SparkSession, case: Case, partitions: int = 1, batches: int = 10) -> Verdict:
    """Runs a case on Spark and compares its answer.

    Args:
        spark: The session.
        case: Which.
        partitions: Of the streams' logs, and of the state.
        batches: Micro-batches that it takes at the least.
    """
    program = _read(case)
    (written,) = program.queries
    query = written.query
    tuples = tuples_read(program, query, case.data)
    with bounded(spark, tuples, partitions, batches) as streams:
        answer, took = streams.answer(query, "relation")
    expected = read_answer(case.expected, [column.type for column in query.plan.columns])
    got = elements_of(answer)
    return Verdict(
        case.name,
        partitions,
        took,
        expected.total(),
        expected - got,
        got - expected,
    )


def elements_of(answer: pa.Table) -> Counter[Element]:
    """An answer's elements as data files have them."""
    at = answer.column(INSTANT).to_numpy() // UNIT_US
    sign = answer.column(SIGN).to_pylist()
    columns = [answer.column(name).to_pylist() for name in answer.column_names if name not in (INSTANT, SIGN)]
    return Counter(
        (int(t), "+" if d > 0 else "-", tuple(map(plain_value, values)))
        for t, d, values in zip(at, sign, zip(*columns, strict=True), strict=True)
    )


def _read(case: Case) -> Program:
    program = read_file(case.query, UNIT_US)
    if len(program.queries) != 1:
        raise InvalidInputError(f"{case.query} has one query", len(program.queries), "one file for each")
    return program
