"""Which queries can be estimated, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cql.cases import meant

from penstock.cql.analysis.estimating import estimated
from penstock.cql.errors import CqlError
from penstock.pipeline.spec.load import load_pipeline
from penstock.policies.quality.estimates import WITHOUT_CHANCES
from penstock.vocabulary.errors import InvalidInputError

WINDOW = "[RANGE 4 SEC SLIDE 4 SEC]"


def test_counts_sums_and_averages_of_one_value_can_be() -> None:
    found = estimated(
        meant(f"SELECT avg(m) AS mean, l, count(m) AS n FROM T {WINDOW} WHERE m > 1 GROUP BY l")
    )
    assert found.names == ("mean", "l", "n")
    assert found.aggregates == {"mean": "avg", "n": "count"}
    assert list(found.keys) == ["l"]
    assert found.value is not None


def test_tuples_can_be_counted() -> None:
    found = estimated(meant(f"SELECT count(*) AS n FROM T {WINDOW}"))
    assert (found.value, found.aggregates, found.keys) == (None, {"n": "count"}, {})


@pytest.mark.parametrize(
    ("text", "got"),
    [
        (f"SELECT max(m) FROM T {WINDOW}", "MAX"),
        (f"SELECT avg(m) + 1 AS x FROM T {WINDOW}", "x, an expression of aggregates"),
        (f"SELECT avg(m), sum(l) FROM T {WINDOW}", "aggregates of different values"),
        (f"SELECT avg(m), count(*) FROM T {WINDOW}", "COUNT.* beside others"),
        (f"SELECT avg(m) FROM T {WINDOW} GROUP BY l", "a GROUP BY that the answer does not show"),
        (f"SELECT l, avg(m) FROM T {WINDOW} GROUP BY l HAVING avg(m) > 1", "joins, DISTINCT, HAVING"),
        (f"SELECT m FROM T {WINDOW}", "no aggregate"),
        (f"SELECT avg(T.m) FROM T {WINDOW}, U {WINDOW} WHERE T.l = U.l", "joins"),
    ],
)
def test_others_are_refused_with_the_form_that_works(text: str, got: str) -> None:
    with pytest.raises(CqlError, match=f"estimates are of COUNT, SUM and AVG of one value.*got: .*{got}"):
        estimated(meant(text))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"SELECT l AS Mean_Low, avg(m) AS mean FROM T {WINDOW} GROUP BY l", "Mean_Low"),
        (f"SELECT count(m) AS mean_error, avg(m) AS mean FROM T {WINDOW}", "mean_error"),
        (f"SELECT l AS interval, avg(m) AS mean FROM T {WINDOW} GROUP BY l", "interval"),
    ],
)
def test_a_column_named_as_one_that_an_estimate_adds_is_refused(text: str, name: str) -> None:
    with pytest.raises(
        CqlError, match=f"stand beside the columns of an estimated answer; got: '{name}'; hint"
    ):
        estimated(meant(text))


def test_columns_of_the_tuples_may_have_the_names_of_those_that_an_estimate_adds() -> None:
    found = estimated(meant(f"SELECT l AS count, l AS k, avg(m) AS mean FROM T {WINDOW} GROUP BY l"))
    assert list(found.keys) == ["count", "k"]
    assert len(set(found.keys.values())) == 1


def pipeline(cls: dict[str, Any], **query: Any) -> None:
    load_pipeline(
        {
            "log": "logs",
            "classes": {"gold": {"target": "2s", **cls}},
            "streams": {"s": {"schema": {"k": "long", "v": "double"}}},
            "queries": {"q": {"class": "gold", "estimates": True, **query}},
        }
    )


AVERAGE = f"SELECT avg(v) AS m FROM s {WINDOW} WHERE k = 1"


@pytest.mark.parametrize(
    ("cls", "query", "said"),
    [
        (
            {"shed": "balance-sic"},
            {"cql": AVERAGE},
            "known probability; got: shed by balance-sic: batches",
        ),
        ({}, {"cql": AVERAGE, "answers": "relation"}, "estimates are by window.*got: answers: relation"),
        ({}, {"cql": f"REGISTER QUERY a AS {AVERAGE}"}, "estimates are by window.*got: a family"),
        ({}, {"cql": f"SELECT max(v) AS m FROM s {WINDOW}"}, "got: MAX"),
        ({}, {"sql": "SELECT k FROM s"}, "queries.q.estimates is a key beside cql alone"),
    ],
    ids=["shed", "relation", "family", "aggregate", "sql"],
)
def test_a_pipeline_says_why_there_are_none(cls: dict[str, Any], query: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        pipeline(cls, **query)


WITHOUT = {
    "oldest": {"by": "oldest", "within": "class"},
    "window": {"by": "window", "size": "1s"},
    "semantic": {"by": "utility", "utility": "v"},
    "balance-sic": "balance-sic",
}


@pytest.mark.parametrize("shedder", WITHOUT_CHANCES)
def test_a_class_that_sheds_without_chances_is_refused_with_the_reason(shedder: str) -> None:
    with pytest.raises(InvalidInputError, match=f"known probability; got: .*{WITHOUT_CHANCES[shedder]}"):
        pipeline({"shed": WITHOUT[shedder]}, cql=AVERAGE)


def test_a_pipeline_that_has_them_is_accepted() -> None:
    pipeline({"shed": "random"}, cql=AVERAGE)
    pipeline({}, cql=AVERAGE)
