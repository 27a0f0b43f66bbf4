"""Relations computed step by step are those of the definition, wherever one step ends and the next begins."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.cql.brute import US, Element, Row
from tests.cql.cases import QUERIES, RELATIONS, by_instant, expected, meant
from tests.effort import tries

from penstock.cql.engine.bag import Changes
from penstock.cql.engine.run import ORDER, Engine, schema_of
from penstock.cql.meaning.lower import lowered
from penstock.cql.meaning.plan import Base, Query, Scan


def table_of(scan: Scan | Base, elements: list[tuple[int, Element]]) -> Changes:
    schema = schema_of(scan)
    rows = [row for _, (_, row) in elements]
    signs = np.ones(len(rows), np.int64)
    if isinstance(scan, Base):
        signs = np.array([1 if row[0] == "+" else -1 for row in rows], np.int64)
        rows = [row[1:] for row in rows]
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    order = pa.array([number for number, _ in elements], pa.int64())
    fed = pa.table([*columns, order], schema=schema.append(pa.field(ORDER, pa.int64())))
    return Changes(fed, np.array([at * US for _, (at, _) in elements], np.int64), signs)


def stepped(query: Query, streams: dict[str, list[Element]], cuts: list[int], until: int) -> Changes:
    """Runs a query in steps that end at these instants; each step is run by an engine that was restored."""
    plan = lowered(query.plan)
    scans = [each for each in plan.walk() if isinstance(each, Scan | Base)]
    parts, kept = [], Engine(plan, scans).save()
    fed = [0] * len(scans)
    for cut in [*sorted(set(cuts)), until + 1]:
        engine = Engine(plan, scans)
        engine.load(kept)
        inputs = []
        for i, scan in enumerate(scans):
            numbered = list(enumerate(streams[scan.stream if isinstance(scan, Scan) else scan.relation]))
            # what comes a little later has come already: it waits
            new = [e for e in numbered[fed[i] :] if e[1][0] < cut + 2]
            fed[i] += len(new)
            inputs.append(table_of(scan, new))
        parts.append(engine.step(inputs, cut * US))
        kept = engine.save()
    return Changes(
        pa.concat_tables([part.rows for part in parts]),
        np.concatenate([part.at for part in parts]),
        np.concatenate([part.sign for part in parts]),
    )


def answer_of(
    query: Query, streams: dict[str, list[Element]], cuts: list[int], until: int
) -> dict[int, tuple[Counter[Row], Counter[Row]]]:
    changed = stepped(query, streams, cuts, until)
    rows = [tuple(row.values()) for row in changed.rows.to_pylist()]
    return by_instant(zip(changed.at, changed.sign, rows, strict=True))


instants = st.integers(0, 25)
numbers = st.one_of(st.none(), st.integers(0, 4).map(float), st.sampled_from([0.5, 39.0, 99.0]))
whole = st.one_of(st.integers(0, 3), st.integers(0, 3), st.none())
texts = st.sampled_from(["a", "ab", "b", None])


def elements_of(*columns: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Element]]:
    return st.lists(st.tuples(instants, st.tuples(*columns)), max_size=14).map(
        lambda elements: sorted(elements, key=lambda element: element[0])
    )


inputs = st.fixed_dictionaries(
    {
        "S": elements_of(whole, numbers, texts),
        "T": elements_of(whole, numbers),
        "U": elements_of(whole, numbers),
    }
)


@pytest.mark.parametrize("text", QUERIES)
@settings(max_examples=tries(6, 20))
@given(streams=inputs, cuts=st.lists(instants, max_size=5))
@example(streams={"S": [], "T": [], "U": []}, cuts=[3])
def test_an_answer_is_that_of_the_definition(
    text: str, streams: dict[str, list[Element]], cuts: list[int]
) -> None:
    query, until = meant(text), 40
    assert answer_of(query, streams, cuts, until) == expected(query, streams, until)


@pytest.mark.parametrize(
    "text",
    [
        "ISTREAM(SELECT m FROM T [ROWS 1])",
        "DSTREAM(SELECT m FROM T [ROWS 1])",
        "SELECT m, count(*) FROM T GROUP BY m",
        "SELECT DISTINCT m FROM T [ROWS 2]",
        "SELECT T.l, U.l FROM T, U WHERE T.m = U.m",
        "ISTREAM(SELECT top2(m) FROM T [ROWS 1])",
    ],
)
def test_zero_and_minus_zero_are_one_tuple(text: str) -> None:
    query = meant(text)
    zeros: list[Element] = [(i, (1, value)) for i, value in enumerate([0.0, -0.0, 0.0, -0.0])]
    streams = {"S": [], "T": zeros, "U": [(0, (2, -0.0))]}
    for cuts in ([], [1, 2, 3]):
        assert answer_of(query, streams, cuts, 10) == expected(query, streams, 10)


signs = st.sampled_from(["+", "+", "-"])
changing = st.fixed_dictionaries(
    {
        "S": elements_of(whole, numbers, texts),
        "T": elements_of(whole, numbers),
        "R": elements_of(signs, whole, st.sampled_from([0.5, 1.0, None])),
        "K": elements_of(signs, whole, numbers, texts),
    }
)


@pytest.mark.parametrize("text", RELATIONS)
@settings(max_examples=tries(6, 60))
@given(streams=changing, cuts=st.lists(instants, max_size=5))
def test_a_relation_is_what_insertions_and_deletions_leave(
    text: str, streams: dict[str, list[Element]], cuts: list[int]
) -> None:
    query, until = meant(text), 40
    assert answer_of(query, streams, cuts, until) == expected(query, streams, until)


def test_a_change_that_comes_after_its_answer_was_given_counts_from_then_on() -> None:
    query = meant("SELECT T.m, K.d FROM T [RANGE 20 SECONDS], K WHERE T.l = K.l")
    plan = lowered(query.plan)
    scans = [each for each in plan.walk() if isinstance(each, Scan | Base)]
    first: list[list[tuple[int, Element]]] = [[(0, (1, (7, 0.5)))], [(0, (0, ("+", 7, 1.0, "a")))]]
    late: list[list[tuple[int, Element]]] = [
        [],
        [(1, (3, ("-", 7, None, None))), (2, (12, ("+", 7, 2.0, "b")))],
    ]
    engine = Engine(plan, scans)
    given_ = [engine.step([table_of(s, e) for s, e in zip(scans, first, strict=True)], 10 * US)]
    again = Engine(plan, scans)
    again.load(engine.save())
    given_.append(again.step([table_of(s, e) for s, e in zip(scans, late, strict=True)], 15 * US))
    told = [
        (int(at) // US, int(sign), tuple(row.values()))
        for part in given_
        for at, sign, row in zip(part.at, part.sign, part.rows.to_pylist(), strict=True)
    ]
    assert sorted((at, sign, row[-1]) for at, sign, row in told) == [(1, 1, "a"), (10, -1, "a"), (12, 1, "b")]
