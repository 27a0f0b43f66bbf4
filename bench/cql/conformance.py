"""Runs cases whose answers are known, tuple by tuple.

A case that is refused is a verdict, too, and the others are run.

queries/NAME.cql     the streams with their data, REGISTER STREAM S (A int) FROM 'S1', and one query
data/S1.dat[.gz]     tuples
expected/NAME[.gz]   the answer; see `penstock.cql.datafiles` for both
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.cql.datafiles import UNIT_US, Element, find_file, plain_value, read_answer
from penstock.cql.engine.bag import INSTANT, SIGN
from penstock.cql.errors import CqlError
from penstock.cql.files import read_file
from penstock.cql.meaning.plan import Plan, ToStream
from penstock.cql.program import Program, tuples_read
from penstock.spark.cql.bounded import bounded
from penstock.vocabulary.errors import InvalidInputError, PenstockError


@dataclass(frozen=True, slots=True)
class Case:
    """A query, its data and its answer."""

    name: str
    query: Path
    data: Path
    expected: Path
    """The folder with its answer."""


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
        at_end: Elements of the last instant of streams that have ended, of which the expected answer has
            none: STREAM does not give what RSTREAM has there.
        refused: Why it was not run; empty if it was.
    """

    case: str
    partitions: int
    batches: int
    tuples: int
    missing: Counter[Element]
    extra: Counter[Element]
    at_end: Counter[Element] = field(default_factory=Counter)
    refused: str = ""

    @property
    def wrong(self) -> int:
        return self.missing.total() + self.extra.total()

    @property
    def passed(self) -> bool:
        return not self.refused and not self.wrong


def cases_in(folder: Path, queries: Path | None = None) -> list[Case]:
    """The cases of a folder, by name.

    Args:
        folder: With `data` and `expected`.
        queries: Where the queries lie; its `queries` by default.

    Raises:
        InvalidInputError: There are none.
    """
    where = folder / "queries" if queries is None else queries
    found = sorted(where.glob("*.cql"))
    if not found:
        raise InvalidInputError(f"{where} has queries", "none", "one file NAME.cql for each expected/NAME")
    return [Case(each.stem, each, folder / "data", folder / "expected") for each in found]


def run_case(spark: SparkSession, case: Case, partitions: int = 1, batches: int = 10) -> Verdict:
    """Runs a case on Spark and compares its answer; one that cannot be run is refused.

    Args:
        spark: The session.
        case: Which.
        partitions: Of the streams' logs, and of the state.
        batches: Micro-batches that it takes at the least.
    """
    try:
        return _compared(spark, case, partitions, batches)
    except CqlError as error:
        refused = error.sentence
    except PenstockError as error:
        refused = str(error)
    return Verdict(case.name, partitions, 0, 0, Counter(), Counter(), refused=refused)


def _compared(spark: SparkSession, case: Case, partitions: int, batches: int) -> Verdict:
    program = _read(case)
    (written,) = program.queries
    query = written.query
    answer_file = find_file(case.expected, case.name)
    expected = read_answer(answer_file, [column.type for column in query.plan.columns])
    tuples = tuples_read(program, query, case.data)
    with bounded(spark, tuples, partitions, batches) as streams:
        answer, took = streams.answer(query, "relation")
        last = streams.last_us // UNIT_US
    got = elements_of(answer)
    extra, at_end = got - expected, Counter[Element]()
    if _is_rstream(query.plan) and not any(t == last for t, _, _ in expected):
        at_end = Counter({each: times for each, times in extra.items() if each[0] == last})
    return Verdict(case.name, partitions, took, expected.total(), expected - got, extra - at_end, at_end)


def _is_rstream(plan: Plan) -> bool:
    return isinstance(plan, ToStream) and plan.kind == "RSTREAM"


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
