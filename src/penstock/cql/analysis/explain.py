"""A plan in words, for people."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from penstock.cql.language.dialect import to_text
from penstock.cql.meaning.catalog import Catalog, StreamDef
from penstock.cql.meaning.lower import is_known_at_once, leaves_of, lowered, spread_by, stream_of
from penstock.cql.meaning.plan import (
    Aggregate,
    Aggregation,
    Base,
    Distinct,
    Filter,
    Join,
    Map,
    Plan,
    Query,
    Scan,
    ToStream,
    UnionAll,
    Window,
    Windowed,
    WindowKind,
)


def plan_lines(query: Query, catalog: Catalog) -> list[str]:
    """A line for each operator; its inputs are on lines below it, indented further."""
    words = Words(catalog)
    words.learn(query.plan)
    lines = [f"answer: {', '.join(query.names)} ({'a stream' if query.plan.is_stream else 'a relation'})"]
    _add(lines, query.plan, 1, words)
    return lines


def running_lines(query: Query, catalog: Catalog, mode: str) -> list[str]:
    """How Spark runs a query: which part is Spark SQL, and by which columns the rest is spread.

    Args:
        query: The query.
        catalog: The streams that the query names.
        mode: `windows`, `relation` or `rows`.
    """
    if mode == "rows":
        return ["answers: tuple by tuple, in Spark SQL"]
    if mode == "windows":
        return ["answers: each window's result once; Spark's own windows, joins and aggregates"]
    lines, plan = ["answers: the exact relation, as changes"], lowered(query.plan)
    if is_known_at_once(plan):
        return [*lines, "  Spark SQL alone, without state"]
    words, leaves = Words(catalog), leaves_of(plan)
    words.learn(plan)
    native = [leaf for leaf in leaves if not isinstance(leaf, Scan | Base)]
    for leaf in native:
        done = " and ".join(words.of(each) for each in leaf.walk() if not isinstance(each, Scan))
        lines.append(f"  of stream {stream_of(leaf)} in Spark SQL: {done}")
    spread = spread_by(plan, leaves)
    where = "in one bucket: all tuples must meet"
    if spread is not None:
        columns = dict.fromkeys(words.column(name) for name in spread.values())
        where = f"in buckets of {', '.join(columns)}"
    return [*lines, f"  the rest in the engine, its state {where}"]


def _add(lines: list[str], plan: Plan, depth: int, words: Words) -> None:
    lines.append("  " * depth + words.of(plan))
    for each in plan.inputs:
        _add(lines, each, depth + 1, words)


class Words:
    """Names of a plan's columns for people: by their streams, or by the expression they are made of."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._labels: dict[str, str] = {}

    def learn(self, plan: Plan) -> None:
        for each in plan.inputs:
            self.learn(each)
        names = [column.name for column in plan.columns]
        if isinstance(plan, Scan | Base):
            of = plan.stream if isinstance(plan, Scan) else plan.relation
            entry = self._catalog.get(of)
            assert isinstance(entry, StreamDef)
            made_of = zip(names, entry.tuple_columns, strict=True)
            self._labels |= {name: f"{of}.{column}" for name, column in made_of}
        elif isinstance(plan, Map):
            self._labels |= {name: self.text(item) for name, item in zip(names, plan.items, strict=True)}
        elif isinstance(plan, Aggregate):
            keys = len(plan.keys)
            self._labels |= {n: self.column(key) for n, key in zip(names[:keys], plan.keys, strict=True)}
            made = zip(names[keys:], plan.aggregates, strict=True)
            self._labels |= {name: self._call(each) for name, each in made}
        elif isinstance(plan, UnionAll):
            left = plan.left.columns
            self._labels |= {name: self.column(column.name) for name, column in zip(names, left, strict=True)}

    def column(self, name: str) -> str:
        return self._labels.get(name, name)

    def text(self, node: exp.Expr) -> str:
        def replaced(inner: exp.Expr) -> exp.Expr:
            return exp.Var(this=self.column(inner.name)) if isinstance(inner, exp.Column) else inner

        return to_text(node.transform(replaced, copy=True))

    def _call(self, each: Aggregation) -> str:
        name = f"TOP{each.k}" if each.function == "TOP" else each.function
        return f"{name}({', '.join(self.column(a) for a in each.arguments) or '*'})"

    def of(self, plan: Plan) -> str:
        """An operator in words."""
        if isinstance(plan, Scan):
            return f"stream {plan.stream}"
        if isinstance(plan, Base):
            by = f" by {', '.join(self.column(key) for key in plan.keys)}" if plan.keys else ""
            return f"relation {plan.relation}{by}"
        if isinstance(plan, Windowed):
            return f"window {window_words(plan.window, self.column)}"
        if isinstance(plan, Filter):
            return f"where {self.text(plan.condition)}"
        if isinstance(plan, Map):
            return f"select {', '.join(self.text(item) for item in plan.items)}"
        if isinstance(plan, Join):
            conditions = [f"{self.column(a)} = {self.column(b)}" for a, b in plan.equal]
            conditions += [] if plan.condition is None else [self.text(plan.condition)]
            return f"join on {' AND '.join(conditions)}" if conditions else "join, all pairs"
        if isinstance(plan, Aggregate):
            made = ", ".join(self._call(each) for each in plan.aggregates)
            keys = ", ".join(self.column(key) for key in plan.keys)
            return f"group by {keys}: {made}" if keys else f"aggregate {made}"
        if isinstance(plan, Distinct):
            return "distinct"
        if isinstance(plan, ToStream):
            return plan.kind
        return "union all"


def window_words(window: Window, column: Callable[[str], str] = str) -> str:
    """A window in words.

    Args:
        window: The window.
        column: Gives the name of a column.
    """
    slide = window.slide
    if window.kind is WindowKind.RANGE:
        text = f"range {window.size / 1e6:g} s"
        return text if slide is None else f"{text}, slide {slide / 1e6:g} s"
    if window.kind is WindowKind.ROWS:
        return f"rows {window.size}" if slide is None else f"rows {window.size}, slide {slide}"
    if window.kind is WindowKind.PARTITION:
        return f"rows {window.size} of each {', '.join(column(key) for key in window.keys)}"
    return window.kind.value.lower()
