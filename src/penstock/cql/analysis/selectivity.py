"""Estimates, from a sample, which fraction of a stream's rows passes a condition or a family's queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from penstock.cql.analysis.families import PARAMETER, Family, Value, is_parameter
from penstock.cql.engine.vector import column_of, is_true
from penstock.cql.meaning.lower import leaves_of, stream_of
from penstock.cql.meaning.plan import Filter, Map, Plan, Scan
from penstock.cql.meaning.types import KEPT


def wanted_fractions(family: Family, samples: Mapping[str, pa.Table]) -> dict[str, float] | None:
    """By query, the fraction of rows that passes the query's own conditions, before windows and groups.

    Args:
        family: The family.
        samples: By stream, sampled rows with the stream's columns in order.

    Returns:
        `None` if the fractions cannot be computed, see `passing_fraction`.
    """
    leaves = leaves_of(family.shape.plan)
    found = {name: passing_fraction(leaves, samples, values) for name, values in family.members.items()}
    known = {name: fraction for name, fraction in found.items() if fraction is not None}
    return known if len(known) == len(found) else None


def passing_fraction(
    leaves: Sequence[Plan], samples: Mapping[str, pa.Table], values: Sequence[Value] = ()
) -> float | None:
    """The fraction of rows that passes conditions on single tuples.

    Args:
        leaves: Leaves with the conditions; see `leaves_of`.
        samples: By stream, sampled rows with the stream's columns in order.
        values: Values of parameters.

    Returns:
        `None` if the fraction cannot be computed: without rows, and for random conditions.
    """
    leaves = [_without_maps(leaf) for leaf in leaves]
    seen = sum(samples[stream_of(leaf)].num_rows for leaf in leaves)
    if not seen or any(_is_drawn(leaf) for leaf in leaves):
        return None
    return sum(_passed(leaf, samples, values).num_rows for leaf in leaves) / seen


def _without_maps(leaf: Plan) -> Plan:
    """The leaf without its maps. A map neither adds nor drops rows, so the count is the same."""
    while isinstance(leaf, Map):
        leaf = leaf.input
    return leaf


def _passed(plan: Plan, samples: Mapping[str, pa.Table], values: Sequence[Value]) -> pa.Table:
    if isinstance(plan, Scan):
        return samples[plan.stream].rename_columns([column.name for column in plan.columns])
    assert isinstance(plan, Filter | Map)
    rows = _passed(plan.input, samples, values)
    if isinstance(plan, Filter):
        return rows.filter(is_true(_with_values(plan.condition, values), rows))
    made = {
        column.name: column_of(_with_values(item, values), rows, column.type)
        for column, item in zip(plan.columns, plan.items, strict=True)
    }
    return pa.table(made)


def _with_values(node: exp.Expr, values: Sequence[Value]) -> exp.Expr:
    def replaced(inner: exp.Expr) -> exp.Expr:
        if isinstance(inner, exp.Column) and is_parameter(inner):
            return exp.convert(values[int(inner.name.removeprefix(PARAMETER))])
        return inner

    return node.transform(replaced)


def _is_drawn(leaf: Plan) -> bool:
    return any(
        str(call.this).upper() == KEPT
        for each in leaf.walk()
        if isinstance(each, Filter)
        for call in each.condition.find_all(exp.Anonymous)
    )
