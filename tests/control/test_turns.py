"""Turns: shares of time by weight, whatever the turns' lengths, and turns short enough for the targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.schedule.turns import Asking, Demand, Turns, plan_turns
from penstock.control.tuning import TUNING
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

weights = st.floats(0.1, 100)
loads = st.floats(0.0, 1.0)
planned = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        Demand,
        target_s=st.floats(0.1, 60),
        load=loads,
        queries=st.integers(1, 10),
        fixed_s=st.floats(0, 1),
    ),
    min_size=1,
)


def asking(loads: dict[str, float], fixed_s: float | dict[str, float] = 0.0) -> Asking:
    """Queries by their parts of the load, and their fixed costs."""
    costs = fixed_s if isinstance(fixed_s, dict) else dict.fromkeys(loads, fixed_s)
    at = np.arange(len(loads))
    return Asking(list(loads), at, np.array(list(loads.values())), np.array([costs[key] for key in loads]))


@given(planned, st.fixed_dictionaries(dict.fromkeys("abcdef", weights)))
def test_a_row_that_just_missed_a_turn_is_in_time_after_the_next(
    asked: dict[str, Demand], shares: dict[str, float]
) -> None:
    turns = plan_turns(asked, shares)
    assert set(turns) == set(asked)
    for name, turn in turns.items():
        demand = asked[name]
        assert 0 <= turn.length_s <= demand.target_s
        assert turn.cycle_s >= turn.length_s
        if turn.length_s > TUNING.least_fixed * demand.fixed_s:  # the least length does not bind
            assert turn.cycle_s + turn.length_s <= demand.target_s * (1 + 1e-9)
        else:
            assert turn.length_s == pytest.approx(min(TUNING.least_fixed * demand.fixed_s, demand.target_s))


def test_a_cycle_is_as_long_as_the_smallest_target_allows() -> None:
    shares = {"gold": 0.6, "bulk": 0.4}
    turns = plan_turns({"gold": Demand(2.0, 1.0, 1, 0.0), "bulk": Demand(2.0, 1.0, 2, 0.0)}, shares)
    assert turns["gold"].cycle_s == turns["bulk"].cycle_s == pytest.approx(2.0 / 1.6)
    assert turns["gold"].length_s == pytest.approx(0.6 * 2.0 / 1.6)
    assert turns["bulk"].length_s == pytest.approx(0.2 * 2.0 / 1.6), (
        "each of two queries has half of the share"
    )
    alone = plan_turns({"gold": Demand(2.0, 0.3, 1, 0.0)}, shares)["gold"]
    assert (alone.length_s, alone.cycle_s) == (pytest.approx(1.0),) * 2, "who alone has work has all of it"
    assert plan_turns({}, shares) == {}


def test_a_query_that_asks_for_more_than_the_others_of_its_class_has_longer_turns() -> None:
    shares, bulk = {"gold": 0.5, "bulk": 0.5}, Demand(2.0, 1.0, 1, 0.0)
    below = Demand(2.0, 0.4, 2, 0.0, asking({"light": 0.05, "heavy": 0.35}))
    turn = plan_turns({"gold": below, "bulk": bulk}, shares)["gold"]
    assert turn.of("light") == pytest.approx(0.10 * turn.cycle_s), "what it asks for and half of what is left"
    assert turn.of("heavy") == pytest.approx(0.40 * turn.cycle_s), "an equal part would shed half of its rows"
    above = Demand(2.0, 1.0, 2, 0.0, asking({"light": 0.2, "heavy": 0.8}))
    turn = plan_turns({"gold": above, "bulk": bulk}, shares)["gold"]
    assert turn.of("light") == pytest.approx(0.1 * turn.cycle_s), "where it is too much, half of it each"
    assert turn.of("heavy") == pytest.approx(0.4 * turn.cycle_s)
    assert turn.of("another") == turn.length_s


def test_queries_of_a_class_with_too_much_keep_the_same_fraction_of_their_rows() -> None:
    bulk, target_s, fixed_s = Demand(4.0, 1.0, 1, 0.0), 4.0, 0.16
    starting = fixed_s / (TUNING.full_at * target_s)  # of the time, for each of the two
    two = asking({"light": starting + 0.01, "heavy": starting + 0.79}, fixed_s)
    gold = Demand(target_s, 0.9, 2, fixed_s, two)
    turn = plan_turns({"gold": gold, "bulk": bulk}, {"gold": 0.5, "bulk": 0.5})["gold"]
    assert turn.of("heavy") == pytest.approx((starting + 0.5 * 0.79) * turn.cycle_s)
    assert turn.of("light") == pytest.approx(TUNING.least_fixed * fixed_s), "the least length binds"
    crowded = Demand(0.4, 1.6, 2, 0.0, asking({"a": 0.8, "b": 0.8}, 0.16))
    turn = plan_turns({"gold": crowded, "bulk": bulk}, {"gold": 0.5, "bulk": 0.5})["gold"]
    assert turn.of("a") == turn.of("b") == pytest.approx(TUNING.least_fixed * 0.16)


def test_the_least_length_of_a_turn_is_by_its_query() -> None:
    two = asking({"cheap": 0.01, "dear": 0.01}, {"cheap": 0.1, "dear": 0.4})
    demands = {"bulk": Demand(4.0, 0.02, 2, 0.4, two), "gold": Demand(4.0, 1.0, 1, 0.1)}
    turn = plan_turns(demands, {"bulk": 0.01, "gold": 0.99})["bulk"]
    assert turn.of("cheap") == pytest.approx(TUNING.least_fixed * 0.1)
    assert turn.of("dear") == pytest.approx(TUNING.least_fixed * 0.4)
    assert turn.of("unknown") == pytest.approx(TUNING.least_fixed * 0.4), "nobody knows which it is"


@given(
    planned,
    st.fixed_dictionaries(dict.fromkeys("abcdef", weights)),
    st.dictionaries(st.sampled_from("pqrs"), st.floats(0.01, 1.0), min_size=1),
)
def test_turns_of_unequal_queries_are_in_time_and_no_more_than_the_share(
    asked: dict[str, Demand], shares: dict[str, float], loads: dict[str, float]
) -> None:
    asked = {name: replace(demand, asking=asking(loads), fixed_s=0.0) for name, demand in asked.items()}
    total = sum(shares[name] for name in asked)
    for name, turn in plan_turns(asked, shares).items():
        lengths_s = [turn.of(query) for query in loads]
        assert turn.cycle_s + max(lengths_s) <= asked[name].target_s * (1 + 1e-9)
        assert sum(lengths_s) <= shares[name] / total * turn.cycle_s * (1 + 1e-9)


def test_a_class_with_more_time_has_fewer_and_longer_turns() -> None:
    shares = {"gold": 0.5, "bulk": 0.5}
    demands = {"gold": Demand(4.0, 0.5, 4, 0.0), "bulk": Demand(8.0, 1.0, 4, 0.0)}
    turns = plan_turns(demands, shares)
    assert turns["gold"].cycle_s == pytest.approx(4.0 / 1.125)
    assert turns["gold"].length_s == pytest.approx(0.125 * 4.0 / 1.125)
    assert turns["bulk"].cycle_s == pytest.approx((8.0 - 0.125 * 4.0 / 1.125) / 1.125)
    assert turns["bulk"].length_s == pytest.approx(0.125 * turns["bulk"].cycle_s)


@given(planned, st.fixed_dictionaries(dict.fromkeys("abcdef", weights)))
def test_a_long_turn_of_another_class_makes_no_row_late(
    asked: dict[str, Demand], shares: dict[str, float]
) -> None:
    asked = {name: Demand(d.target_s, d.load, d.queries, 0.0) for name, d in asked.items()}
    turns = plan_turns(asked, shares)
    total = sum(shares[name] for name in asked)
    common_s = min(turn.cycle_s for turn in turns.values())
    for name, turn in turns.items():
        for other in asked.keys() - {name}:
            left_s = (1 - shares[other] / total) * common_s
            assert turn.length_s <= left_s * (1 + 1e-9), "the other has its share of every common cycle"
            if turn.cycle_s > common_s * (1 + 1e-9):
                waits_s = turn.cycle_s + turn.length_s + turns[other].length_s
                assert waits_s <= asked[name].target_s * (1 + 1e-9)


def test_batches_that_run_at_once_make_turns_longer_and_the_cycle_shorter() -> None:
    asked = {"gold": Demand(2.0, 1.0, 1, 0.0), "bulk": Demand(30.0, 1.0, 1, 0.0)}
    shares = {"gold": 6.0, "bulk": 4.0}
    one, more = plan_turns(asked, shares), plan_turns(asked, shares, parallel=1.5)
    assert more["gold"].cycle_s == pytest.approx(2.0 / (1.0 + 0.9))
    assert more["gold"].length_s == pytest.approx(0.9 * 2.0 / 1.9)
    assert more["gold"].length_s > one["gold"].length_s
    assert plan_turns(asked, shares, 3.0)["gold"].length_s == pytest.approx(1.0), "one query, one batch"


def serve(turns: Turns, lengths: dict[str, float], seconds: float, seed: int = 1) -> dict[str, float]:
    """Who always wants takes turns of about these lengths; returns the shares of the time."""
    random = np.random.default_rng(seed)
    used = dict.fromkeys(lengths, 0.0)
    while sum(used.values()) < seconds:
        name = turns.next_of(lengths)
        assert name is not None
        turns.begin(name, lengths)
        took_s = lengths[name] * float(random.uniform(0.5, 1.5))
        turns.charge(name, took_s)
        used[name] += took_s
    total = sum(used.values())
    return {name: seconds_used / total for name, seconds_used in used.items()}


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param({"gold": 0.6, "silver": 0.3, "bulk": 0.1}, id="turns as long as the shares"),
        pytest.param({"gold": 0.5, "silver": 0.5, "bulk": 0.5}, id="equal turns"),
        pytest.param({"gold": 0.05, "silver": 0.3, "bulk": 2.0}, id="the least class has the longest turns"),
    ],
)
def test_classes_that_always_want_get_shares_by_weight(lengths: dict[str, float]) -> None:
    shares = serve(Turns({"gold": 6, "silver": 3, "bulk": 1}), lengths, 1000.0)
    assert shares == pytest.approx({"gold": 0.6, "silver": 0.3, "bulk": 0.1}, abs=0.01)


def test_a_class_that_was_idle_saves_nothing_up() -> None:
    turns = Turns({"gold": 6, "silver": 3, "bulk": 1})
    serve(turns, {"silver": 0.3, "bulk": 0.3}, 500.0)
    lengths = {"gold": 0.3, "silver": 0.3, "bulk": 0.3}
    first = serve(turns, lengths, 20.0)
    assert first["gold"] < 0.65, "or it would have all of the time until it has caught up"
    assert first["silver"] > 0.25
    assert serve(turns, lengths, 1000.0) == pytest.approx({"gold": 0.6, "silver": 0.3, "bulk": 0.1}, abs=0.01)


def test_a_class_that_runs_keeps_what_it_is_owed_while_another_begins() -> None:
    """With two slots a class is in the middle of its turn when the next one is given out."""
    turns = Turns({"gold": 9, "bulk": 1})
    turns.begin("bulk", ["gold", "bulk"])
    turns.charge("bulk", 1.0)
    turns.begin("gold", ["gold", "bulk"])
    turns.begin("bulk", ["bulk", "gold"])  # gold runs: it wants on
    turns.charge("bulk", 1.0)
    turns.charge("gold", 1.0)
    assert turns.next_of(["gold", "bulk"]) == "gold"


def test_a_weight_can_change_while_turns_are_taken() -> None:
    turns = Turns({"gold": 6, "bulk": 1})
    serve(turns, {"gold": 0.3, "bulk": 0.3}, 100.0)
    turns.set_weights({"bulk": 6})
    assert serve(turns, {"gold": 0.3, "bulk": 0.3}, 1000.0) == pytest.approx(
        {"gold": 0.5, "bulk": 0.5}, abs=0.02
    )
    assert turns.weights == {"gold": 6, "bulk": 6}
    assert turns.used_s["gold"] + turns.used_s["bulk"] == pytest.approx(1100.0, abs=1.0)


def test_a_turn_that_nobody_else_wanted_is_not_held_against_a_class() -> None:
    turns = Turns({"gold": 9, "bulk": 1})
    waits_s = {}
    for others in ([], ["gold"]):
        spare = turns.begin("bulk", ["bulk", *others])
        assert spare is not bool(others)
        turns.charge("bulk", 2.0, spare=spare)
        waits_s[len(others)] = 0.0
        while turns.next_of(["gold", "bulk"]) == "gold":
            turns.begin("gold", ["gold", "bulk"])
            turns.charge("gold", 0.1)
            waits_s[len(others)] += 0.1
    assert waits_s[0] <= 2.0, "no longer than its own turn"
    assert waits_s[1] == pytest.approx(18.0, abs=0.2)


def test_spare_time_gives_no_credit_over_a_class_that_has_used_less_than_its_part() -> None:
    turns = Turns({"gold": 6, "bulk": 4})
    turns.charge("gold", 0.9)
    turns.charge("bulk", 1.1, spare=True)
    assert turns.next_of(["gold", "bulk"]) == "gold"


def test_what_a_batch_took_far_beyond_its_plan_is_paid_with_the_next_ones() -> None:
    turns = Turns({"gold": 9, "bulk": 1})
    turns.charge("bulk", 3.0, planned_s=1.0)
    assert turns.price("bulk", 0.0, planned_s=1.0) == pytest.approx(1.5)
    assert turns.price("bulk", 1.4, planned_s=1.0) == pytest.approx(1.5)
    assert turns.price("bulk", 1.0) == pytest.approx(1.0), "a batch that runs again has no planned length"
    assert turns.price("bulk", 0.7, planned_s=1.0, spare=True) < 0.7
    turns.charge("bulk", 0.8, planned_s=1.0)
    assert turns.price("bulk", 0.1, planned_s=1.0) == pytest.approx(0.1 + 0.8)


def test_what_a_machine_took_that_stood_still_is_owed_by_nobody() -> None:
    turns = Turns({"gold": 9, "bulk": 1})
    turns.charge("bulk", 100.0, planned_s=1.0)
    paid = [0.0]
    while turns.price("bulk", 0.0, planned_s=1.0) > 0.0:
        paid.append(turns.price("bulk", 0.0, planned_s=1.0))
        turns.charge("bulk", 0.0, planned_s=1.0)
    assert sum(paid) == pytest.approx(TUNING.owed)


def test_shares_hold_where_short_turns_often_take_far_longer_than_planned() -> None:
    turns = Turns({"gold": 6, "bulk": 4})
    lengths, used, random = {"gold": 3.0, "bulk": 0.5}, {"gold": 0.0, "bulk": 0.0}, np.random.default_rng(1)
    while sum(used.values()) < 2000.0:
        name = turns.next_of(lengths)
        assert name is not None
        turns.begin(name, lengths)
        took_s = lengths[name] + (1.0 if random.uniform() < 0.2 else 0.0)
        turns.charge(name, took_s, planned_s=lengths[name])
        used[name] += took_s
    assert used["gold"] / sum(used.values()) == pytest.approx(0.6, abs=0.01)


def test_a_class_that_gets_a_larger_share_does_not_pay_for_its_time_at_the_small_one() -> None:
    turns = Turns({"gold": 0.05, "bulk": 0.95})
    turns.charge("gold", 1.0)
    turns.charge("bulk", 1.0)
    turns.set_weights({"gold": 0.6, "bulk": 0.4})
    waited_s = 0.0
    while turns.next_of(["gold", "bulk"]) == "bulk":
        turns.charge("bulk", 0.1)
        waited_s += 0.1
    assert waited_s == pytest.approx(0.4 * 1.0 / 0.6, abs=0.11), "what its second is worth at the new share"


def test_nobody_wants_a_turn_and_equals_begin_with_the_higher_weight() -> None:
    turns = Turns({"bulk": 1, "gold": 6})
    assert turns.next_of([]) is None
    assert turns.next_of(["bulk", "gold"]) == "gold"
    turns.charge("gold", -5.0)
    assert turns.used_s["gold"] == 0.0, "a timer never runs back, but if it did nobody would gain by it"


def test_wrong_weights_and_names_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="class gold: weight must be a positive number; got: 0"):
        Turns({"gold": 0})
    with pytest.raises(InvalidInputError, match="class gold: weight must be a positive number; got: -1"):
        Turns({"gold": 1}).set_weights({"gold": -1})
    with pytest.raises(UnknownNameError, match="did you mean 'gold'"):
        Turns({"gold": 1}).set_weights({"glod": 1})


def test_learning_is_charged_at_the_highest_weight() -> None:
    turns = Turns({"gold": 6.0, "bronze": 1.0})
    turns.charge("bronze", 3.0, learning=True)
    turns.charge("gold", 4.0)
    assert turns.next_of(["gold", "bronze"]) == "bronze"
    assert turns.used_s == {"gold": 4.0, "bronze": 3.0}
    turns.charge("bronze", 0.5)
    assert turns.next_of(["gold", "bronze"]) == "gold"
