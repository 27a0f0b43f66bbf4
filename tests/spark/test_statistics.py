"""Statistics of queries, from what Spark reports of micro-batches; no JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.cql.cases import meant

from penstock.cql.analysis.families import Family, families_of
from penstock.pipeline.run.statistics import Selectivity, family_costs


def progress(batch: int, taken: int, given: int | None) -> dict[str, Any]:
    observed = None if given is None else {"penstock": {"rows": given}}
    return {"batchId": batch, "numInputRows": taken, "observedMetrics": observed}


def test_selectivity_is_of_the_batches_that_were_looked_at_each_once() -> None:
    found = Selectivity()
    assert found.fraction is None
    for report in (progress(1, 100, 10), progress(1, 100, 10), progress(4, 300, 70), progress(5, 50, None)):
        found.add(report)
    assert found.fraction == pytest.approx(80 / 400)


def test_looking_back_takes_in_what_was_not_looked_at_and_nothing_twice() -> None:
    found = Selectivity()
    found.add(progress(2, 100, 10))
    remembered = [progress(1, 100, 90), progress(2, 100, 10), progress(3, 100, 30)]
    found.look_back(SimpleNamespace(recentProgress=remembered))  # type: ignore[arg-type]
    assert found.fraction == pytest.approx(40 / 200)


def family() -> Family:
    texts = [f"SELECT count(*) FROM T [RANGE 1 SEC SLIDE 1 SEC] WHERE l = {i}" for i in range(2)]
    (found,) = families_of({"a": meant(texts[0]), "b": meant(texts[1])})
    return found


def test_a_query_of_a_family_costs_an_even_part_of_a_batch_and_its_part_of_the_rows() -> None:
    assert family_costs(family(), {"a": 0.3, "b": 0.1}, 0.2, 4e-6) == {
        "a": {"selectivity": 0.3, "fixed_s": 0.1, "row_s": pytest.approx(3e-6)},
        "b": {"selectivity": 0.1, "fixed_s": 0.1, "row_s": pytest.approx(1e-6)},
    }


@pytest.mark.parametrize("fractions", [None, {"a": 0.0, "b": 0.0}])
def test_where_no_rows_were_seen_each_has_an_even_part(fractions: dict[str, float] | None) -> None:
    costs = family_costs(family(), fractions, None, 4e-6)
    assert [each["row_s"] for each in costs.values()] == [2e-6, 2e-6]
    assert costs["a"]["fixed_s"] is None
