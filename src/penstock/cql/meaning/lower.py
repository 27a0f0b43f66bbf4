"""Finds the part of a plan that needs no state, and the columns by which the rest can be spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.cql.meaning.plan import (
    Aggregate,
    Base,
    Distinct,
    Filter,
    Join,
    Map,
    Plan,
    Scan,
    ToStream,
    UnionAll,
    Windowed,
    WindowKind,
)
from penstock.cql.meaning.types import KEPT

Way = frozenset[tuple[int, str]]
"""Pairs of a leaf and a column whose equal values must be in one bucket."""


def lowered(plan: Plan) -> Plan:
    """The same plan with conditions and expressions moved below time windows.

    Whether a tuple is in a time window does not depend on other tuples, so it can be dropped or changed
    before. Windows by number count tuples, so operators above them stay there.
    """
    plan = with_inputs(plan, [lowered(each) for each in plan.inputs])
    if (
        isinstance(plan, ToStream)
        and plan.kind == "ISTREAM"
        and isinstance(plan.input, Windowed)
        and plan.input.window.kind is WindowKind.UNBOUNDED
    ):
        return plan.input.input  # tuples only come into this relation: it is the stream itself
    if isinstance(plan, Filter | Map) and isinstance(plan.input, Windowed) and plan.input.window.by_time:
        window = plan.input
        return replace(window, columns=plan.columns, input=lowered(replace(plan, input=window.input)))
    return plan


def with_inputs(plan: Plan, inputs: Sequence[Plan]) -> Plan:
    """The same operator over other inputs."""
    if isinstance(plan, Join | UnionAll):
        return replace(plan, left=inputs[0], right=inputs[1])
    return replace(plan, input=inputs[0]) if inputs else plan  # type: ignore[call-arg]


def leaves_of(plan: Plan) -> list[Plan]:
    """The leaves of a plan: rows of one stream, dropped or changed one by one; and base relations."""
    if isinstance(plan, Base):
        return [plan]
    if plan.is_stream and all(isinstance(each, Scan | Filter | Map) for each in plan.walk()):
        return [plan]
    return [leaf for each in plan.inputs for leaf in leaves_of(each)]


def stream_of(leaf: Plan) -> str:
    """The stream of a leaf."""
    return next(each.stream for each in leaf.walk() if isinstance(each, Scan))


def is_known_at_once(plan: Plan) -> bool:
    """Whether a lowered plan is a stream's rows, or one time window over them.

    When a tuple comes, it is then known when the tuple leaves, so no state is needed.
    """
    if plan.is_stream and leaves_of(plan) == [plan]:
        return True
    return isinstance(plan, Windowed) and plan.window.by_time and leaves_of(plan) == [plan.input]


def spread_by(plan: Plan, leaves: Sequence[Plan]) -> Mapping[int, str] | None:
    """By leaf, a column such that only tuples with equal values in it influence each other.

    Such a plan gives the same answer if each value is computed on a machine of its own. `None` if all tuples
    must be in one place: a window by number over a whole stream, a sum over all, a join without an equality.
    """
    ways = _ways(plan, leaves)
    whole = [way for _, way in sorted(ways.items()) if len(way) == len(leaves)]
    return dict(whole[0]) if whole else None


def _ways(plan: Plan, leaves: Sequence[Plan]) -> dict[str, Way]:
    """By column of the answer, the way in which the inputs can be spread by it."""
    names = [column.name for column in plan.columns]
    for i, leaf in enumerate(leaves):
        if leaf is plan:  # a deletion may have nothing but the key
            known = leaf.keys if isinstance(leaf, Base) and leaf.keys else names
            return {name: frozenset({(i, name)}) for name in known}
    below = [_ways(each, leaves) for each in plan.inputs]
    if isinstance(plan, Windowed):
        if plan.window.by_time:
            return below[0]
        counted = plan.window.keys if plan.window.kind is WindowKind.PARTITION else ()
        return {name: way for name, way in below[0].items() if name in counted}
    if isinstance(plan, Join):
        return dict(_joined(plan, below))
    if isinstance(plan, Aggregate):
        keys = zip(names, plan.keys, strict=False)
        return {name: below[0][key] for name, key in keys if key in below[0]}
    if isinstance(plan, UnionAll):
        sides = [[column.name for column in side.columns] for side in plan.inputs]
        return {
            name: below[0][left] | below[1][right]
            for name, left, right in zip(names, *sides, strict=True)
            if left in below[0] and right in below[1]
        }
    if isinstance(plan, Map):
        return {
            name: below[0][item.name]
            for name, item in zip(names, plan.items, strict=True)
            if isinstance(item, exp.Column) and item.name in below[0]
        }
    if isinstance(plan, ToStream) and plan.kind == "RSTREAM":
        return {}  # a change of one tuple sends out all other tuples again
    assert isinstance(plan, Filter | Distinct | ToStream)
    return below[0]


def _joined(plan: Join, below: Sequence[Mapping[str, Way]]) -> Iterator[tuple[str, Way]]:
    types = {column.name: column.type for side in plan.inputs for column in side.columns}
    for left, right in plan.equal:
        if left in below[0] and right in below[1] and types[left] == types[right]:
            way = below[0][left] | below[1][right]
            yield left, way
            yield right, way


def late_sample(plan: Plan) -> exp.Expr | None:
    """A KEPT that does not choose among rows of one stream, because it is above a join or an operator with
    state; `None` if there is none.
    """
    plan = lowered(plan)
    below = {id(each) for leaf in leaves_of(plan) for each in leaf.walk()}
    above = (node for each in plan.walk() if id(each) not in below for node in _expressions(each))
    return next((call for node in above for call in _samples(node)), None)


def _expressions(plan: Plan) -> list[exp.Expr]:
    if isinstance(plan, Map):
        return list(plan.items)
    condition = plan.condition if isinstance(plan, Filter | Join) else None
    return [] if condition is None else [condition]


def _samples(node: exp.Expr) -> Iterator[exp.Expr]:
    return (call for call in node.find_all(exp.Anonymous) if str(call.this).upper() == KEPT)
