"""Capacity policies: what holds for any classes, and the cases of the thesis by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.policies.capacity import (
    CAPACITY_POLICIES,
    ClassUse,
    HighestRate,
    capacity_policy,
    quotas,
)
from penstock.policies.capacity.base import original_shares
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

EPS = 1e-9
SHARING = sorted(set(CAPACITY_POLICIES) - {"cqc"})


@st.composite
def classes(draw: st.DrawFn, limits: bool = False) -> list[ClassUse]:
    count = draw(st.integers(1, 5))
    parts = [draw(st.floats(0.01, 1.0)) for _ in range(count)]
    total = draw(st.sampled_from([0.9, 1.0, 2.0]))
    fraction = st.sampled_from([0.0, 0.3, 1.0]) if limits else st.just(1.0)
    return [
        ClassUse(
            f"c{i}",
            draw(st.sampled_from([1.0, 2.0, 3.0, 6.0])),
            total * part / sum(parts),
            draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0, 3.0])) * draw(st.floats(0.5, 1.0)),
            draw(fraction),
            draw(fraction),
        )
        for i, part in enumerate(parts)
    ]


def unmet(use: ClassUse, shares: Mapping[str, float]) -> bool:
    return shares[use.name] < use.load - EPS


def redistributed(uses: Sequence[ClassUse], shares: Mapping[str, float]) -> list[ClassUse]:
    return [replace(use, share=shares[use.name]) for use in uses]


@pytest.mark.parametrize("name", sorted(CAPACITY_POLICIES))
@given(uses=classes(limits=True))
def test_the_sum_of_shares_does_not_change_and_none_is_negative(name: str, uses: list[ClassUse]) -> None:
    shares = capacity_policy(name).redistribute(uses)
    assert sum(shares.values()) == pytest.approx(sum(use.share for use in uses))
    assert all(share >= -EPS for share in shares.values())
    assert shares.keys() == {use.name for use in uses}


@pytest.mark.parametrize("name", SHARING)
@given(uses=classes(limits=True))
def test_at_rest_nothing_moves(name: str, uses: list[ClassUse]) -> None:
    policy, originals = capacity_policy(name), original_shares(uses)
    assume(all(abs(use.load - originals[use.name]) > EPS for use in uses))  # there rounding decides
    once = policy.redistribute(uses)
    assert policy.redistribute(redistributed(uses, once)) == pytest.approx(once)


@pytest.mark.parametrize("name", SHARING)
@given(uses=classes())
def test_no_capacity_is_idle_while_a_class_is_short(name: str, uses: list[ClassUse]) -> None:
    shares = capacity_policy(name).redistribute(uses)
    # the others of a hybrid divide what the first leaves, which may be more than their original shares
    own = dict.fromkeys(shares, sum(shares.values())) if name == "hybrid" else original_shares(uses)
    if any(unmet(use, shares) for use in uses):
        assert all(shares[use.name] <= use.load + 0.05 * own[use.name] + EPS for use in uses)


@given(uses=classes(limits=True))
def test_a_class_with_unmet_demand_has_at_least_its_original_share(uses: list[ClassUse]) -> None:
    shares, originals = capacity_policy("dilos").redistribute(uses), original_shares(uses)
    for use in uses:
        assert not unmet(use, shares) or shares[use.name] >= originals[use.name] - EPS


@given(uses=classes())
def test_while_a_class_is_short_no_lower_one_has_borrowed(uses: list[ClassUse]) -> None:
    shares, originals = capacity_policy("dilos").redistribute(uses), original_shares(uses)
    short = [use.priority for use in uses if unmet(use, shares)]
    for use in uses:
        if any(priority > use.priority for priority in short):
            assert shares[use.name] <= originals[use.name] + EPS


@given(uses=classes())
def test_equals_in_need_have_equal_shares(uses: list[ClassUse]) -> None:
    shares = capacity_policy("dilos").redistribute(uses)
    for use in uses:
        for other in uses:
            if use.priority == other.priority and unmet(use, shares):
                assert shares[other.name] <= shares[use.name] + EPS


@pytest.mark.parametrize("name", ["absolute", "dilos", "hybrid"])
@given(uses=classes(limits=True))
def test_limits_on_lending_and_borrowing_hold(name: str, uses: list[ClassUse]) -> None:
    shares, originals = capacity_policy(name).redistribute(uses), original_shares(uses)
    total = sum(shares.values())
    for use in uses:
        original = originals[use.name]
        assert shares[use.name] >= original * (1 - use.lendable_fraction) - EPS
        assert shares[use.name] <= original + use.borrow_limit_fraction * total + EPS


@given(uses=classes())
def test_absolute_priority_leaves_nothing_to_lower_classes_while_a_higher_is_short(
    uses: list[ClassUse],
) -> None:
    shares = capacity_policy("absolute").redistribute(uses)
    short = [use.priority for use in uses if unmet(use, shares)]
    for use in uses:
        if any(priority > use.priority for priority in short):
            assert shares[use.name] == pytest.approx(0.0, abs=EPS)


@given(uses=classes())
def test_strict_gives_a_higher_class_all_or_no_smaller_part_of_its_input(uses: list[ClassUse]) -> None:
    shares = capacity_policy("strict").redistribute(uses)
    for high in uses:
        for low in uses:
            if high.priority > low.priority and high.load > 0 and low.load > 0:
                kept = shares[high.name] / high.load
                assert kept >= 1 - EPS or kept >= shares[low.name] / low.load - EPS


@given(uses=classes())
def test_hybrid_gives_the_first_class_all_and_the_rest_by_dilos(uses: list[ClassUse]) -> None:
    shares = capacity_policy("hybrid").redistribute(uses)
    highest = max(use.priority for use in uses)
    rest = [use for use in uses if use.priority < highest]
    if any(unmet(use, shares) for use in uses if use.priority == highest):
        assert all(shares[use.name] == pytest.approx(0.0, abs=EPS) for use in rest)
    left = sum(shares[use.name] for use in rest)
    weight = sum(use.priority for use in rest)
    for use in rest:
        assert not unmet(use, shares) or shares[use.name] >= left * use.priority / weight - EPS


# -- by hand -----------------------------------------------------------------------------------------


def test_example_1_of_the_thesis() -> None:
    """pham2016 1.3.1: 15 tuples/s of capacity, Q1 twice as important as Q2, 9 tuples/s for each."""
    capacity, rate = 15.0, 9.0
    q1 = ClassUse("q1", 2.0, 10 / capacity, rate / capacity)
    q2 = ClassUse("q2", 1.0, 5 / capacity, rate / capacity)
    excess = {use.name: capacity * (use.load - use.share) for use in (q1, q2)}
    assert excess == pytest.approx({"q1": -1.0, "q2": 4.0})  # shed 4 of Q2, nothing of Q1
    shares = capacity_policy("dilos", reserve_fraction=0.0).redistribute([q1, q2])
    assert capacity * shares["q2"] == pytest.approx(6.0)
    assert rate - capacity * shares["q2"] == pytest.approx(3.0)  # now 3 of Q2 are shed
    assert capacity * shares["q1"] == pytest.approx(rate)
    with_reserve = capacity_policy("dilos").redistribute([q1, q2])
    assert capacity * with_reserve["q2"] == pytest.approx(6.0 - 0.05 * 10)


def three(*loads: float, shares: tuple[float, ...] = (0.6, 0.3, 0.1)) -> list[ClassUse]:
    return [ClassUse(f"class{k + 1}", (6.0, 3.0, 1.0)[k], shares[k], load) for k, load in enumerate(loads)]


def test_an_underloaded_class_lends_all_but_its_load_and_five_percent_of_its_own_share() -> None:
    shares = capacity_policy("dilos").redistribute(three(0.2, 0.1, 2.0))
    assert shares == pytest.approx({"class1": 0.23, "class2": 0.115, "class3": 0.655})


def test_a_class_takes_its_own_back_from_the_borrower_of_the_lowest_priority() -> None:
    lent = three(0.6, 0.35, 2.0, shares=(0.23, 0.35, 0.42))
    assert capacity_policy("dilos").redistribute(lent) == pytest.approx(
        {"class1": 0.6, "class2": 0.3, "class3": 0.1}
    )
    some = three(0.4, 0.35, 2.0, shares=(0.23, 0.35, 0.42))
    assert capacity_policy("dilos").redistribute(some) == pytest.approx(
        {"class1": 0.4, "class2": 0.35, "class3": 0.25}
    )


def test_what_nobody_needs_goes_back_to_its_owners_the_highest_first() -> None:
    calm = three(0.1, 0.05, 0.05, shares=(0.2, 0.1, 0.7))
    shares = capacity_policy("dilos").redistribute(calm)
    assert shares == pytest.approx({"class1": 0.6, "class2": 0.3, "class3": 0.1})


def test_small_swings_move_nothing() -> None:
    rest = three(0.21, 0.11, 2.0, shares=(0.23, 0.115, 0.655))
    assert capacity_policy("dilos").redistribute(rest) == pytest.approx({u.name: u.share for u in rest})


def test_a_critical_class_can_limit_what_it_lends() -> None:
    uses = three(0.2, 0.1, 2.0)
    uses[0] = replace(uses[0], lendable_fraction=0.25)
    assert capacity_policy("dilos").redistribute(uses)["class1"] == pytest.approx(0.45)
    uses[2] = replace(uses[2], borrow_limit_fraction=0.1)
    shares = capacity_policy("dilos").redistribute(uses)
    assert shares["class3"] == pytest.approx(0.2)
    assert shares["class1"] == pytest.approx(0.6)  # nobody may have the rest: it goes back


def test_strict_lifts_a_heavily_loaded_class_to_the_lower_ones_quality() -> None:
    # DILoS: 0.6 of 1.8 (a third) for class 1, and class 3 would keep all of its 0.08
    shares = capacity_policy("strict").redistribute(three(1.8, 0.3, 0.08))
    kept = {
        "class1": shares["class1"] / 1.8,
        "class2": shares["class2"] / 0.3,
        "class3": shares["class3"] / 0.08,
    }
    assert kept == pytest.approx(dict.fromkeys(kept, 1.0 / 2.18))


def test_quotas_are_the_shares_of_a_round() -> None:
    assert quotas({"a": 0.6, "b": 0.3, "c": 0.1}, 0.5) == pytest.approx({"a": 0.3, "b": 0.15, "c": 0.05})


def taken(order: HighestRate, able: Mapping[str, float | None], turns: int) -> list[str]:
    keys = []
    for _ in range(turns):
        key = order.next_of(able)
        assert key is not None
        order.took(key, able)
        keys.append(key)
    return keys


def test_highest_rate_first_and_nobody_starves() -> None:
    able = {"slow": 1.0, "fast": 9.0, "faster": 10.0}
    assert taken(HighestRate(), able, 6) == ["faster", "fast", "slow"] * 2
    assert HighestRate().next_of({}) is None


def test_queries_whose_rate_is_not_known_have_every_other_turn_until_it_is() -> None:
    order = HighestRate()
    able = {"slow": 1.0, "fast": 9.0, "new": None}
    assert taken(order, able, 4) == ["new", "fast", "new", "slow"]
    newer = {**able, "newer": None}
    assert taken(order, newer, 6) == ["newer", "new", "newer", "fast", "new", "slow"]
    assert taken(HighestRate(), {"new": None}, 3) == ["new", "new", "new"]


@given(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=60), st.integers(0, 5))
def test_a_query_that_can_run_has_its_turn_before_another_has_two(rounds: list[set[int]], new: int) -> None:
    order = HighestRate()
    since: dict[str, list[str]] = {}
    for able in rounds:
        rates_per_s = {f"q{i}": float(i) if i < new else None for i in able}
        key = order.next_of(rates_per_s)
        assert key is not None
        order.took(key, rates_per_s)
        since = {other: [*since.get(other, []), key] for other in rates_per_s if other != key}
        known = [[other for other in others if int(other[1:]) < new] for others in since.values()]
        assert all(others.count(other) <= 2 for others in known for other in others)
        assert all(len(others) <= 20 for others in since.values())


def test_wrong_reports_and_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'dilos'"):
        capacity_policy("dilo")
    for wrong in ({"priority": 0.0}, {"priority": -1.0}, {"share": -0.1}, {"load": float("nan")}):
        with pytest.raises(InvalidInputError):
            ClassUse(**{"name": "a", "priority": 1.0, "share": 0.5, "load": 0.5, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="lendable_fraction"):
        ClassUse("a", 1.0, 0.5, 0.5, lendable_fraction=1.5)
    with pytest.raises(InvalidInputError, match="names must differ"):
        capacity_policy("cqc").redistribute([ClassUse("a", 1.0, 0.5, 0.5)] * 2)
