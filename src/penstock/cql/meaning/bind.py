"""Binds a query: resolves names, types and windows, and chooses the operators and their order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from sqlglot import exp

from penstock.cql.language import nodes
from penstock.cql.meaning.catalog import Catalog, RelationDef, StreamDef
from penstock.cql.meaning.expressions import (
    aggregate_in,
    all_of,
    conjuncts,
    default_name,
    equal_columns,
    filtered,
    is_over_tuples,
    reference,
    split,
    unwrapped,
)
from penstock.cql.meaning.grouping import Grouping
from penstock.cql.meaning.lower import late_sample
from penstock.cql.meaning.naming import Naming
from penstock.cql.meaning.plan import (
    Base,
    Column,
    Distinct,
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
from penstock.cql.meaning.scope import Bound, Field, unique_names
from penstock.cql.meaning.types import Typing

MOST_COLUMNS = 1000


def bind(query: exp.Expr, catalog: Catalog, text: str, tick_us: int = 1) -> Query:
    """The meaning of a query.

    Args:
        query: The parsed query.
        catalog: Streams and views that the query may name.
        text: Text of the query, for errors.
        tick_us: Time between two instants: a tuple is in `[NOW]` until the next instant.

    Raises:
        CqlError: The query has no meaning.
    """
    binder = Binder(catalog, text, tick_us)
    bound = binder.query(query)
    if (sample := late_sample(bound.plan)) is not None:
        binder.refuse(
            sample,
            "KEPT chooses among the rows of one stream",
            "one over a join, a group or a window by number",
            "choose first: FROM ISTREAM(SELECT * FROM readings WHERE KEPT(0.3)) [...]",
        )
    return Query(bound.plan, tuple(unique_names(bound.fields)))


class Binder(Naming):
    """Binds the statements of one text."""

    def __init__(self, catalog: Catalog, text: str, tick_us: int = 1) -> None:
        super().__init__(text)
        self._catalog, self._tick_us = catalog, tick_us
        self._numbers = itertools.count()

    # -- an expression alone --------------------------------------------------------------------

    def scalar(self, node: exp.Expr, columns: Mapping[str, str], stream: str) -> tuple[exp.Expr, str]:
        """An expression over a stream's columns, by name and type: bound, and its type."""
        fields = tuple(Field(name, Column(name, kind), stream) for name, kind in columns.items())
        scope = Bound(Scan(tuple(field.column for field in fields), stream), fields)
        bound, typing = self.expression(node, scope), self.typing(scope)
        return typing.settled(bound), typing.of(bound)

    # -- queries --------------------------------------------------------------------------------

    def query(self, node: exp.Expr) -> Bound:
        if isinstance(node, nodes.ToStream):
            return self._to_stream(node, node.args["kind"], self.query(node.this))
        if isinstance(node, exp.Union):
            return self._union(node)
        if isinstance(node, exp.Select):
            return self._select(node)
        raise self.error(node, "a query", self.words(node), "SELECT ... FROM ...")

    def _to_stream(self, node: exp.Expr, kind: str, bound: Bound) -> Bound:
        if bound.plan.is_stream:
            self.refuse(node, f"{kind} is over a relation", "a stream", f"without {kind} it is one already")
        return Bound(ToStream(bound.plan.columns, bound.plan, kind), bound.fields)

    def _union(self, node: exp.Union) -> Bound:
        left, right = self.query(node.this), self.query(node.expression)
        if left.plan.is_stream != right.plan.is_stream:
            self.refuse(
                node.expression,
                "both sides of UNION are streams, or both relations",
                "one of each",
                "add ISTREAM(...) or a window",
            )
        if len(left.fields) != len(right.fields):
            got = f"{len(left.fields)} and {len(right.fields)}"
            self.refuse(node.expression, "both sides of UNION have as many columns", got, "select the same")
        types = [
            self._united(node, ours, theirs) for ours, theirs in zip(left.fields, right.fields, strict=True)
        ]
        columns = tuple(self.column(kind) for kind in types)
        both: Plan = UnionAll(columns, left.plan, right.plan)
        if node.args.get("distinct"):
            if both.is_stream:
                self.refuse(
                    node, "streams are united with UNION ALL", "UNION", "a stream has no duplicates to drop"
                )
            both = Distinct(columns, both)
        names = zip(left.fields, columns, strict=True)
        return Bound(both, tuple(Field(field.name, column) for field, column in names))

    def _united(self, node: exp.Union, ours: Field, theirs: Field) -> str:
        types = ours.column.type, theirs.column.type
        if types[0] != types[1]:
            self.refuse(
                node.expression,
                "columns that UNION puts below each other have one type",
                f"{ours.name} {types[0]} and {theirs.name} {types[1]}",
                "make them alike, for example a * 1.0",
            )
        return types[0]

    def column(self, kind: str) -> Column:
        number = next(self._numbers)
        return Column(f"c{number}", kind)

    # -- select ---------------------------------------------------------------------------------

    def _select(self, node: exp.Select) -> Bound:
        joins = node.args.get("joins") or []
        sources = [self._source(node.args["from_"].this), *(self._source(join.this) for join in joins)]
        self._refuse_twins(sources, [node.args["from_"].this, *(join.this for join in joins)])
        everything = Bound(sources[0].plan, tuple(field for each in sources for field in each.fields))
        conditions = [join.args["on"] for join in joins if join.args.get("on") is not None]
        if (where := node.args.get("where")) is not None:
            conditions.append(where.this)
        terms = [term for each in conditions for term in self._terms(each, everything)]
        scope = Bound(self._joined(sources, terms), everything.fields)
        items, kind = unwrapped(node.expressions)
        bound = self._projected(node, items, scope)
        if node.args.get("distinct"):
            bound = Bound(Distinct(bound.plan.columns, bound.plan), bound.fields)
        return self._to_stream(node, kind, bound) if kind else bound

    def _refuse_twins(self, sources: list[Bound], written: list[exp.Expr]) -> None:
        seen: set[str] = set()
        for source, node in zip(sources, written, strict=True):
            for qualifier in source.qualifiers:
                if qualifier.lower() in seen:
                    self.refuse(node, "a name is once in FROM", repr(qualifier), f"{qualifier} AS other")
                seen.add(qualifier.lower())

    def _source(self, node: nodes.Source) -> Bound:
        inner = node.this
        bound = self._named(inner) if isinstance(inner, exp.Identifier) else self.query(inner)
        alias = node.args.get("alias")
        if alias is not None:
            bound = bound.under(alias.name)
        window = node.args.get("window")
        if not bound.plan.is_stream:
            if window is not None:
                self.refuse(
                    window,
                    "a window is over a stream",
                    "one over a relation",
                    "leave it out, or make a stream of it: ISTREAM(...) [...]",
                )
            return bound
        made = Window(WindowKind.UNBOUNDED) if window is None else self._window(window, bound)
        return Bound(Windowed(bound.plan.columns, bound.plan, made), bound.fields)

    def _named(self, node: exp.Identifier) -> Bound:
        entry = self._catalog.get(node.name)
        if entry is None:
            known = ", ".join(self._catalog.names) or "nothing is registered"
            self.refuse(
                node, "FROM has a registered stream, relation or view", repr(node.name), f"known: {known}"
            )
        if isinstance(entry, StreamDef):
            shown = entry.tuple_columns
            columns = tuple(self.column(kind) for kind in shown.values())
            named = dict(zip(shown, columns, strict=True))
            plan: Plan = Scan(columns, entry.name)
            if isinstance(entry, RelationDef):
                plan = Base(columns, entry.name, tuple(named[key].name for key in entry.keys))
            return Bound(plan, tuple(Field(name, column, entry.name) for name, column in named.items()))
        text, self._text = self._text, entry.text
        bound = self.query(entry.query)
        self._text = text
        return bound.under(entry.name)

    def _window(self, node: nodes.StreamWindow, bound: Bound) -> Window:
        kind = WindowKind[node.this]
        size, slide = node.args.get("size") or 0, node.args.get("slide")
        if kind is WindowKind.NOW or (kind is WindowKind.RANGE and size == 0):
            return Window(WindowKind.NOW, self._tick_us)
        if kind is WindowKind.RANGE:
            return Window(kind, int(size * 10**6), None if slide is None else int(slide * 10**6))
        if kind is WindowKind.PARTITION:
            keys = tuple(self.field(key, key.name, "", bound).column.name for key in node.expressions)
            return Window(kind, size, None, keys)
        return Window(kind, size, slide)

    # -- conditions and joins -------------------------------------------------------------------

    def _terms(self, condition: exp.Expr, scope: Bound) -> list[exp.Expr]:
        """The terms that are joined by AND, bound."""
        bound = self.expression(condition, scope)
        if (call := aggregate_in(bound)) is not None:
            self.refuse(call, "WHERE and ON have no aggregates", self.words(call), "HAVING has them")
        typing = self.typing(scope)
        typing.condition(bound)
        return list(conjuncts(typing.settled(bound)))

    def _joined(self, sources: list[Bound], terms: list[exp.Expr]) -> Plan:
        """Joins the sources from left to right; each term is applied as soon as its columns are there."""
        plan: Plan | None = None
        left: set[str] = set()
        for source in sources:
            own = {column.name for column in source.plan.columns}
            mine, terms = split(terms, own)
            right = filtered(source.plan, mine)
            if plan is None:
                plan, left = right, own
                continue
            both, terms = split(terms, left | own)
            equal = tuple(pair for term in both if (pair := equal_columns(term, left, own)) is not None)
            others = [term for term in both if equal_columns(term, left, own) is None]
            columns = (*plan.columns, *right.columns)
            plan, left = Join(columns, plan, right, equal, all_of(others)), left | own
        assert plan is not None
        return filtered(plan, terms)  # such as 1 = 1, which has no columns

    # -- what is selected -----------------------------------------------------------------------

    def _projected(self, node: exp.Select, items: list[exp.Expr], scope: Bound) -> Bound:
        chosen = [pair for item in items for pair in self._item(item, scope)]
        if len(chosen) > MOST_COLUMNS:
            self.refuse(
                node, f"an answer has {MOST_COLUMNS} columns at most", str(len(chosen)), "select fewer"
            )
        having = node.args.get("having")
        wanted = None if having is None else self.expression(having.this, scope)
        group = node.args.get("group")
        keys = [] if group is None else [self.expression(key, scope) for key in group.expressions]
        aggregated = bool(keys) or any(aggregate_in(value) is not None for _, value in chosen)
        aggregated = aggregated or (wanted is not None and aggregate_in(wanted) is not None)
        if not aggregated:
            if having is not None:
                self.refuse(having, "HAVING is over groups", self.words(having.this), "WHERE is over tuples")
            return self._mapped(scope.plan, chosen, self.typing(scope))
        return self._grouped(scope, keys, chosen, wanted)

    def _mapped(self, plan: Plan, chosen: list[tuple[Field, exp.Expr]], typing: Typing) -> Bound:
        columns = tuple(self.column(typing.of(value)) for _, value in chosen)
        for (field, value), column in zip(chosen, columns, strict=True):
            if column.type == "NULL":
                self.refuse(value, "a column of the answer has a type", f"{field.name}, NULL", "leave it out")
        fields = tuple(
            Field(field.name, column, field.qualifier)
            for (field, _), column in zip(chosen, columns, strict=True)
        )
        return Bound(Map(columns, plan, tuple(typing.settled(value) for _, value in chosen)), fields)

    def _grouped(
        self,
        scope: Bound,
        keys: list[exp.Expr],
        chosen: list[tuple[Field, exp.Expr]],
        wanted: exp.Expr | None,
    ) -> Bound:
        typing = self.typing(scope)
        for key in keys:
            if (call := aggregate_in(key)) is not None:
                self.refuse(call, "GROUP BY has no aggregates", self.words(call), "HAVING has them")
        before, after = self._having(wanted, keys)
        for term in (*before, *(() if wanted is None else (wanted,))):
            if aggregate_in(term) is None:
                typing.condition(term)
        plan = filtered(scope.plan, [typing.settled(term) for term in before])
        grouping = Grouping(self, typing, keys)
        results = [(field, grouping.over_groups(value)) for field, value in chosen]
        conditions = [grouping.over_groups(term) for term in after]
        grouped = grouping.plan(plan)
        of_groups = Typing({column.name: column.type for column in grouped.columns}, self.error, self.words)
        for term in conditions:
            of_groups.condition(term)
        wanted_groups = [of_groups.settled(term) for term in conditions]
        return self._mapped(filtered(grouped, wanted_groups), results, of_groups)

    def _having(self, wanted: exp.Expr | None, keys: list[exp.Expr]) -> tuple[list[exp.Expr], list[exp.Expr]]:
        """Conditions of HAVING over tuples, which THEMIS allows there too, and conditions over groups."""
        terms = [] if wanted is None else list(conjuncts(wanted))
        before = [term for term in terms if is_over_tuples(term, keys)]
        return before, [term for term in terms if not any(term is other for other in before)]

    def _item(self, item: exp.Expr, scope: Bound) -> list[tuple[Field, exp.Expr]]:
        """The columns that an item of SELECT gives: names with bound expressions."""
        if isinstance(item, exp.Star):
            return [(field, reference(field.column)) for field in scope.fields]
        if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            qualifier = self.qualifier(item.table, scope)
            fields = [field for field in scope.fields if field.qualifier.lower() == qualifier.lower()]
            if not fields:
                known = ", ".join(scope.qualifiers)
                self.refuse(item, "a name before .* is in FROM", repr(item.table), f"known: {known}")
            return [(field, reference(field.column)) for field in fields]
        if isinstance(item, exp.Alias):
            value = self.expression(item.this, scope)
            return [(Field(item.alias, Column("", "")), value)]
        value = self.expression(item, scope)
        if isinstance(item, exp.Column):
            found = self.field(item, item.name, item.table, scope)
            return [(found, value)]
        return [(Field(default_name(item), Column("", "")), value)]
