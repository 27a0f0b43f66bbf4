"""Looking at expressions and taking them apart: aggregates, conditions, columns, places in the text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlglot import exp

from penstock.cql.errors import Place
from penstock.cql.language import nodes
from penstock.cql.language.dialect import to_text
from penstock.cql.meaning.plan import Column, Filter, Plan
from penstock.cql.meaning.types import AGGREGATES

TOP = re.compile(r"TOP(\d+)")
_SQL_NAMES = {"STDDEVSAMP": "STDDEV", "COVARSAMP": "COV", "COVAR_SAMP": "COV", "STDDEV_SAMP": "STDDEV"}


def function_name(node: exp.Expr) -> str:
    """The name of a function in upper letters; empty if the expression is no function."""
    if isinstance(node, exp.Anonymous):
        name = str(node.this).upper()
    elif isinstance(node, exp.Func):
        name = type(node).__name__.upper()
    else:
        return ""
    return _SQL_NAMES.get(name, name)


def is_aggregate(node: exp.Expr) -> bool:
    name = function_name(node)
    return name in AGGREGATES[:-1] or TOP.fullmatch(name) is not None


def aggregate_in(node: exp.Expr) -> exp.Expr | None:
    return next((inner for inner in node.walk() if is_aggregate(inner)), None)


def is_over_tuples(term: exp.Expr, keys: list[exp.Expr]) -> bool:
    """Whether a condition has columns that only tuples have."""
    if aggregate_in(term) is not None:
        return False

    def without_keys(inner: exp.Expr) -> exp.Expr:
        return exp.null() if any(inner == key for key in keys) else inner

    return rewritten(term, without_keys).find(exp.Column) is not None


def rewritten(node: exp.Expr, replaced: object) -> exp.Expr:
    return node.transform(replaced, copy=True)  # type: ignore[arg-type]


def reference(column: Column, written: exp.Expr | None = None) -> exp.Column:
    """A column of the plan, which keeps the place of what was written."""
    made = exp.Column(this=exp.Identifier(this=column.name, quoted=True))
    if written is not None and (place := place_of(written)) is not None:
        made.meta["place"] = place
    return made


def conjuncts(node: exp.Expr) -> Iterable[exp.Expr]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node


def columns_of(node: exp.Expr) -> set[str]:
    return {column.name for column in node.find_all(exp.Column)}


def split(terms: list[exp.Expr], columns: set[str]) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """Terms that need at least one of these columns and no others; and the other terms."""
    mine = [term for term in terms if columns_of(term) and columns_of(term) <= columns]
    return mine, [term for term in terms if not any(term is other for other in mine)]


def equal_columns(term: exp.Expr, left: set[str], right: set[str]) -> tuple[str, str] | None:
    if not isinstance(term, exp.EQ) or not isinstance(term.this, exp.Column):
        return None
    if not isinstance(term.expression, exp.Column):
        return None
    names = term.this.name, term.expression.name
    if names[0] in left and names[1] in right:
        return names
    return (names[1], names[0]) if names[1] in left and names[0] in right else None


def all_of(terms: list[exp.Expr]) -> exp.Expr | None:
    return exp.and_(*terms, copy=True) if terms else None


def filtered(plan: Plan, terms: list[exp.Expr]) -> Plan:
    condition = all_of(terms)
    return plan if condition is None else Filter(plan.columns, plan, condition)


def unwrapped(items: list[exp.Expr]) -> tuple[list[exp.Expr], str]:
    """`SELECT ISTREAM(a, b)` as a, b and ISTREAM."""
    if len(items) == 1 and isinstance(items[0], exp.Anonymous):
        name = str(items[0].this).upper()
        if name in nodes.TO_STREAM:
            return list(items[0].expressions), name
    return items, ""


def default_name(item: exp.Expr) -> str:
    """The default name of a column without a name: `avg_v` for avg(v)."""
    words = re.findall(r"\w+", to_text(item).lower())
    return "_".join(words)[:40] or "value"


def place_of(node: exp.Expr) -> Place | None:
    """The place of an expression in the text, as far as it is known."""
    places = [place for inner in node.walk() if (place := own_place(inner)) is not None]
    if places:
        return Place(min(place.start for place in places), max(place.end for place in places))
    parent = node.parent
    while parent is not None:
        if (own := own_place(parent)) is not None:
            return own
        parent = parent.parent
    return None


def own_place(node: exp.Expr) -> Place | None:
    if isinstance(place := node.meta.get("place"), Place):
        return place
    start, end = node.meta.get("start"), node.meta.get("end")
    return Place(start, end + 1) if isinstance(start, int) and isinstance(end, int) else None
