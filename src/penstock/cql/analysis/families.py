"""Families: queries that differ in constants alone become one query, with the query's name as a dimension.

The shape of a query is its plan with parameters in place of the constants of its conditions and expressions.
Queries with equal shapes are computed together: a tuple is looked up once among the constants of all queries,
and goes to the queries that want it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from penstock.cql.meaning.lower import lowered, with_inputs
from penstock.cql.meaning.plan import Filter, Map, Plan, Query

PARAMETER = "p"
"""Prefix of the columns with the constants: p0, p1, ..."""
Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Shape:
    """The common shape of the queries of a family.

    Attributes:
        plan: The plan, with columns p0, p1, ... in place of constants.
        names: Names of the answer's columns.
        types: Types of the parameters, as Spark's DDL names them.
    """

    plan: Plan
    names: tuple[str, ...]
    types: tuple[str, ...]


@dataclass(slots=True)
class Family:
    """Queries of one shape.

    Attributes:
        shape: The shape of the queries.
        members: Constants of each query, by its name.
    """

    shape: Shape
    members: dict[str, tuple[Value, ...]] = field(default_factory=dict)


def families_of(queries: Mapping[str, Query]) -> list[Family]:
    """Puts queries of one shape together, in the order in which shapes first appear."""
    found: dict[Shape, Family] = {}
    for name, query in queries.items():
        shape, constants = shape_of(query)
        found.setdefault(shape, Family(shape)).members[name] = constants
    return list(found.values())


def shape_of(query: Query) -> tuple[Shape, tuple[Value, ...]]:
    """A query's shape, and its constants."""
    taken: list[tuple[str, Value]] = []
    plan = _shaped(lowered(query.plan), taken)
    return Shape(plan, query.names, tuple(kind for kind, _ in taken)), tuple(value for _, value in taken)


def parameters_in(nodes: Iterable[exp.Expr]) -> bool:
    """Whether any of these expressions has a parameter."""
    return any(is_parameter(column) for node in nodes for column in node.find_all(exp.Column))


def is_parameter(column: exp.Column) -> bool:
    return column.name.startswith(PARAMETER)  # the columns of a plan are c0, c1, ...


def _shaped(plan: Plan, taken: list[tuple[str, Value]]) -> Plan:
    plan = with_inputs(plan, [_shaped(each, taken) for each in plan.inputs])
    if isinstance(plan, Filter):
        return replace(plan, condition=_with_parameters(plan.condition, taken))
    if isinstance(plan, Map):
        return replace(plan, items=tuple(_with_parameters(item, taken) for item in plan.items))
    return plan


def _with_parameters(node: exp.Expr, taken: list[tuple[str, Value]]) -> exp.Expr:
    def replaced(inner: exp.Expr) -> exp.Expr:
        constant = _constant(inner)
        if constant is None or _stays(inner):
            return inner
        taken.append(constant)
        return exp.Column(this=exp.Identifier(this=f"{PARAMETER}{len(taken) - 1}", quoted=True))

    return node.transform(replaced, copy=True)


def _stays(node: exp.Expr) -> bool:
    """Whether Spark needs a constant at this place: digits of ROUND, and the operand of IS."""
    inside: exp.Expr | None = node
    while inside is not None:
        behind_is = isinstance(inside.parent, exp.Is) and inside.arg_key == "expression"
        if behind_is or inside.arg_key == "decimals":
            return True
        inside = inside.parent
    return False


def _constant(node: exp.Expr) -> tuple[str, Value] | None:
    """The type and value of a constant."""
    if isinstance(node, exp.Boolean):
        return "BOOLEAN", bool(node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        kind, value = _number(node.this)
        return kind, -value
    if not isinstance(node, exp.Literal):
        return None
    return ("STRING", str(node.this)) if node.is_string else _number(node)


def _number(literal: exp.Literal) -> tuple[str, int | float]:
    text = str(literal.this)
    return ("BIGINT", int(text)) if text.isdigit() else ("DOUBLE", float(text))
