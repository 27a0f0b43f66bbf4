"""Queries of one shape are found, and what tells them apart."""

from __future__ import annotations

from tests.cql.cases import meant

from penstock.cql.analysis.families import families_of, shape_of

BY_DEVICE = "SELECT avg(m) FROM T [RANGE 1 SEC SLIDE 1 SEC] WHERE l = {} AND m > {} HAVING count(*) >= {}"


def test_queries_that_differ_in_constants_alone_are_a_family() -> None:
    queries = {f"q{i}": meant(BY_DEVICE.format(i, f"-{i}.5", 7)) for i in range(3)}
    queries["largest"] = meant("SELECT max(m) FROM T [RANGE 1 SEC SLIDE 1 SEC] WHERE l = 1")
    queries["longer"] = meant("SELECT avg(m) FROM T [RANGE 2 SEC SLIDE 1 SEC] WHERE l = 1")
    found = families_of(queries)
    assert [list(family.members) for family in found] == [["q0", "q1", "q2"], ["largest"], ["longer"]]
    assert found[0].shape.types == ("BIGINT", "DOUBLE", "BIGINT")
    assert found[0].members == {f"q{i}": (i, -i - 0.5, 7) for i in range(3)}


def test_a_constant_of_another_type_makes_another_family() -> None:
    texts = ["SELECT m * 2 AS x FROM T", "SELECT m * 3 AS x FROM T", "SELECT m * 2.5 AS x FROM T"]
    found = families_of({text: meant(text) for text in texts})
    assert [list(family.members) for family in found] == [texts[:2], texts[2:]]


def test_texts_and_truths_are_constants_and_digits_of_round_are_not() -> None:
    _, constants = shape_of(meant("SELECT round(m, 2) FROM S [NOW] WHERE d LIKE 'a%' OR d IN ('x', 'y')"))
    assert constants == ("a%", "x", "y")
    _, constants = shape_of(meant("SELECT round(m, -2) FROM S [NOW] WHERE (m > 1) IS TRUE AND d IS NOT NULL"))
    assert constants == (1,)
    one, other = (shape_of(meant(f"SELECT round(m, {digits}) AS x FROM S [NOW]"))[0] for digits in (1, 2))
    assert one != other
