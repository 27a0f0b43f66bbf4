"""Operator networks: what is rejected, and what follows from the boxes and arrows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.sim.workloads.network import Kind, Network, Operator
from penstock.sim.workloads.networks import borealis, qn_complex, qn_flat, qn_long
from penstock.vocabulary.errors import InvalidInputError

SOURCE = Operator("in", Kind.SOURCE, 1e-3)
OUTPUT = Operator("out", Kind.OUTPUT, 1e-3, inputs=("in",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"cost_s": 0.0},
            "operator x: cost_s must be a positive number; got: 0.0; hint: CPU seconds a tuple, e.g. 0.0005",
            id="a_cost_of_zero",
        ),
        pytest.param(
            {"cost_s": float("nan")}, "operator x: cost_s must be a positive number; got: nan", id="no_number"
        ),
        pytest.param(
            {"weight": -1.0},
            "operator x: weight must be a positive number; got: -1.0; hint: 1 is a normal share",
            id="a_negative_weight",
        ),
        pytest.param(
            {"selectivity": -0.1},
            "operator x: selectivity must not be negative; got: -0.1; hint: 1 passes everything",
            id="a_negative_selectivity",
        ),
        pytest.param(
            {"kind": Kind.OUTPUT, "selectivity": 0.5},
            "operator x: kind output passes every tuple on; got: selectivity 0.5; hint: put a select behind",
            id="an_output_that_filters",
        ),
        pytest.param(
            {"kind": Kind.SOURCE, "selectivity": 0.5, "inputs": ()},
            "operator x: kind source passes every tuple on; got: selectivity 0.5",
            id="a_source_that_filters",
        ),
        pytest.param(
            {"inputs": ()},
            "operator x: kind operator has 1 inputs; got: 0; hint: name the upstream operators in `inputs`",
            id="an_operator_without_input",
        ),
        pytest.param(
            {"kind": Kind.SOURCE}, "operator x: kind source has 0 inputs; got: 1", id="a_source_with_an_input"
        ),
        pytest.param(
            {"kind": Kind.JOIN, "window_s": 1.0},
            "operator x: kind join has 2 inputs; got: 1",
            id="a_join_of_one",
        ),
        pytest.param(
            {"kind": Kind.JOIN, "inputs": ("in", "in2")},
            "join x: window_s must be a positive number; got: 0.0; hint: the range of its windows in seconds",
            id="a_join_without_a_window",
        ),
    ],
)
def test_an_operator_that_breaks_a_rule_is_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        Operator(**{"name": "x", "kind": Kind.OPERATOR, "cost_s": 1e-3, "inputs": ("in",), **settings})
    assert re.match(f"expected: {message}", str(error.value)), str(error.value)
    assert error.value.hint


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        pytest.param(
            (SOURCE, SOURCE, OUTPUT),
            "operator names must differ; got: 'in'; hint: rename one of them",
            id="a_name_twice",
        ),
        pytest.param(
            (OUTPUT, SOURCE),
            "operator out reads from an operator that comes before it; got: 'in'; "
            "hint: list operators in topological order, sources first",
            id="an_input_that_comes_later",
        ),
        pytest.param(
            (SOURCE, Operator("out", Kind.OUTPUT, 1e-3, inputs=("nowhere",))),
            "operator out reads from an operator that comes before it; got: 'nowhere'",
            id="an_input_that_does_not_exist",
        ),
        pytest.param(
            (), "a network has a source; got: none; hint: add an operator of kind SOURCE", id="no_source"
        ),
        pytest.param(
            (SOURCE,),
            "a network has an output; got: none; hint: add an operator of kind OUTPUT",
            id="no_output",
        ),
    ],
)
def test_a_network_that_breaks_a_rule_is_rejected(operators: tuple[Operator, ...], message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        Network("n", operators)
    assert str(error.value).startswith(f"expected: {message}")


def test_readers_are_found_from_the_names_of_their_inputs() -> None:
    network = Network(
        "n",
        (
            SOURCE,
            Operator("shared", Kind.OPERATOR, 1e-3, 0.5, ("in",)),
            Operator("a", Kind.OUTPUT, 1e-3, inputs=("shared",), label="gold"),
            Operator("b", Kind.OUTPUT, 1e-3, inputs=("shared",), label="silver"),
        ),
    )
    assert network.downstream == ((1,), (2, 3), (), ())
    assert network.sources == (0,)
    assert network.index == {"in": 0, "shared": 1, "a": 2, "b": 3}
    assert network.labels == ("gold", "silver")


def test_cost_per_row_is_the_mean_load_coefficient_of_the_sources() -> None:
    network = Network(
        "n",
        (
            SOURCE,
            Operator("in2", Kind.SOURCE, 3e-3),
            Operator("half", Kind.OPERATOR, 2e-3, 0.5, ("in",)),
            Operator("out", Kind.OUTPUT, 4e-3, inputs=("half",)),
            Operator("out2", Kind.OUTPUT, 1e-3, inputs=("in2",)),
        ),
        turn_cost_s=1e-3,
        batch_rows=10,
    )
    # with 0.1 ms a tuple for the turn: 1.1 + 2.1 + 0.5 * 4.1 = 5.25 ms and 3.1 + 1.1 = 4.2 ms
    assert network.cost_per_row_s() == pytest.approx((5.25e-3 + 4.2e-3) / 2)
    # alone in its batch a tuple pays the whole turn: 2 + 3 + 2.5 = 7.5 ms and 4 + 2 = 6 ms
    assert network.cost_per_row_s(batch_rows=1) == pytest.approx((7.5e-3 + 6e-3) / 2)


@pytest.mark.parametrize(
    ("network", "is_tree"),
    [
        pytest.param(Network("n", (SOURCE, OUTPUT)), True, id="a_chain"),
        pytest.param(borealis(), True, id="three_chains"),
        pytest.param(
            Network("n", (SOURCE, OUTPUT, Operator("b", Kind.OUTPUT, 1e-3, inputs=("in",)))),
            False,
            id="a_shared_source",
        ),
        pytest.param(
            Network(
                "n",
                (
                    SOURCE,
                    Operator("in2", Kind.SOURCE, 1e-3),
                    Operator("join", Kind.JOIN, 1e-3, 0.1, ("in", "in2"), window_s=1.0),
                    Operator("out", Kind.OUTPUT, 1e-3, inputs=("join",)),
                ),
            ),
            False,
            id="a_join",
        ),
        pytest.param(
            Network(
                "n",
                (
                    SOURCE,
                    Operator("twice", Kind.OPERATOR, 1e-3, 2.0, ("in",)),
                    Operator("out", Kind.OUTPUT, 1e-3, inputs=("twice",)),
                ),
            ),
            False,
            id="an_operator_that_multiplies",
        ),
    ],
)
def test_only_without_sharing_joining_and_multiplying_is_a_tuple_one_row(
    network: Network, is_tree: bool
) -> None:
    assert network.is_tree_of_rows is is_tree


def kinds(network: Network) -> dict[Kind, int]:
    return {kind: sum(op.kind is kind for op in network.operators) for kind in Kind}


def test_the_networks_have_the_operators_of_the_papers() -> None:
    flat, full, tu = qn_flat(), qn_complex(), borealis()
    assert kinds(flat) == {Kind.SOURCE: 1, Kind.OPERATOR: 8, Kind.JOIN: 0, Kind.OUTPUT: 1}
    assert len(flat.operators) == 10
    assert len(full.operators) == 1140
    assert kinds(full)[Kind.SOURCE] == 60
    assert kinds(full)[Kind.OUTPUT] == 240, "60 groups of four queries"
    assert len(tu.operators) == 14
    assert kinds(tu)[Kind.SOURCE] == 3
    five_joins_deep = kinds(qn_long(groups=1))
    assert five_joins_deep[Kind.SOURCE] == 6
    assert five_joins_deep[Kind.OUTPUT] == 4


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_a_row_of_qn_complex_costs_the_same_however_many_groups_there_are(groups: int) -> None:
    assert qn_complex(groups).cost_per_row_s() == pytest.approx(91.5e-6)
    assert not qn_complex(groups).is_tree_of_rows


def test_a_row_of_qn_flat_costs_what_it_is_told_in_full_batches() -> None:
    assert qn_flat().cost_per_row_s() == pytest.approx(4.67e-3)
    assert qn_flat(1e-3).cost_per_row_s() == pytest.approx(1e-3)


def test_borealis_is_full_at_its_capacity() -> None:
    assert 0.97 / borealis(190.0).cost_per_row_s() == pytest.approx(190.0)


def test_half_of_a_weighted_qn_complex_gets_one_and_a_half_times_the_quota() -> None:
    network = qn_complex(4, weighted=True)
    assert {(op.label, op.weight) for op in network.operators} == {("high", 1.5), ("low", 1.0)}
    assert sum(op.label == "high" for op in network.operators) == len(network.operators) / 2
    assert qn_complex(4).labels == ("all",)
