"""CQL by its definition: every relation computed anew at every instant, from all that ever arrived.

Nothing here is shared with how Penstock runs queries, beside the plan that says what a query means.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp

from penstock.cql.language import nodes
from penstock.cql.meaning.plan import (
    Aggregate,
    Aggregation,
    Base,
    Distinct,
    Filter,
    Join,
    Map,
    Plan,
    Scan,
    ToStream,
    UnionAll,
    Window,
    Windowed,
    WindowKind,
)

Row = tuple[Any, ...]
Element = tuple[int, Row]
"""A tuple of a stream with its instant; of a change of a relation the first value is its sign, + or -."""
US = 10**6
WHOLE = ("INT", "BIGINT")
"""Types of casts that leave out what is behind the point."""


def order(row: Row) -> tuple[Any, ...]:
    """Of tuples of one instant of a derived stream; NULL first."""
    return tuple((value is not None, value) for value in row)


class Brute:
    """Evaluates plans over streams whose instants are whole seconds.

    Args:
        streams: By name, elements in the order of their arrival; instants are seconds. Those of a relation
            are its changes.
    """

    def __init__(self, streams: Mapping[str, Sequence[Element]]) -> None:
        self._streams = {name: sorted(elements, key=lambda e: e[0]) for name, elements in streams.items()}
        self._relations: dict[tuple[int, int], list[Row]] = {}
        self._plans: list[Plan] = []  # keeps them alive: `id` is the key above

    def changes(self, plan: Plan, until: int) -> dict[int, tuple[Counter[Row], Counter[Row]]]:
        """By instant from 0, what the answer gains and loses; a stream gains its elements."""
        found = {}
        for now in range(until + 1):
            if plan.is_stream:
                gained, lost = Counter(row for at, row in self.stream(plan, now) if at == now), Counter[Row]()
            else:
                here, before = Counter(self.relation(plan, now)), Counter(self.relation(plan, now - 1))
                gained, lost = here - before, before - here
            if gained or lost:
                found[now] = (gained, lost)
        return found

    # -- streams --------------------------------------------------------------------------------

    def stream(self, plan: Plan, now: int) -> list[Element]:
        """Its elements until now, in order."""
        if isinstance(plan, Scan):
            return [element for element in self._streams[plan.stream] if element[0] <= now]
        if isinstance(plan, UnionAll):
            both = self.stream(plan.left, now) + self.stream(plan.right, now)
            return sorted(both, key=lambda element: (element[0], order(element[1])))
        if isinstance(plan, Filter | Map):
            return [
                (at, row) for at, each in self.stream(plan.input, now) for row in self._changed(plan, [each])
            ]
        assert isinstance(plan, ToStream)
        if plan.kind == "ISTREAM" and (passed := self._passed(plan.input, now)) is not None:
            return passed
        elements: list[Element] = []
        for at in range(now + 1):
            here, before = Counter(self.relation(plan.input, at)), Counter(self.relation(plan.input, at - 1))
            if plan.kind == "ISTREAM":
                rows = (here - before).elements()
            elif plan.kind == "DSTREAM":
                rows = (before - here).elements()
            else:
                rows = here.elements() if here != before else Counter[Row]().elements()
            elements += [(at, row) for row in sorted(rows, key=order)]
        return elements

    def _passed(self, plan: Plan, now: int) -> list[Element] | None:
        """What comes into a relation that has all tuples of a stream, each dropped or changed by itself: the
        stream's own order stays. `None` for other relations."""
        if isinstance(plan, Windowed) and plan.window.kind is WindowKind.UNBOUNDED:
            return self.stream(plan.input, now)
        if not isinstance(plan, Filter | Map) or (below := self._passed(plan.input, now)) is None:
            return None
        return [(at, row) for at, each in below for row in self._changed(plan, [each])]

    @staticmethod
    def _changed(plan: Filter | Map, rows: Sequence[Row]) -> list[Row]:
        """Rows that a condition keeps, or what expressions make of them."""
        if isinstance(plan, Filter):
            return [row for row in rows if value(plan.condition, named(plan.input, row)) is True]
        return [tuple(value(item, named(plan.input, row)) for item in plan.items) for row in rows]

    # -- relations ------------------------------------------------------------------------------

    def relation(self, plan: Plan, now: int) -> list[Row]:
        if now < 0:
            return []
        key = (id(plan), now)
        if key not in self._relations:
            self._plans.append(plan)
            self._relations[key] = self._relation(plan, now)
        return self._relations[key]

    def _relation(self, plan: Plan, now: int) -> list[Row]:
        if isinstance(plan, Base):
            return self._changed_until(plan, now)
        if isinstance(plan, Windowed):
            return self._windowed(plan, now)
        if isinstance(plan, Filter | Map):
            return self._changed(plan, self.relation(plan.input, now))
        if isinstance(plan, Join):
            return self._joined(plan, now)
        if isinstance(plan, Aggregate):
            return self._grouped(plan, self.relation(plan.input, now))
        if isinstance(plan, Distinct):
            return list(dict.fromkeys(self.relation(plan.input, now)))
        assert isinstance(plan, UnionAll)
        return self.relation(plan.left, now) + self.relation(plan.right, now)

    def _changed_until(self, plan: Base, now: int) -> list[Row]:
        """What all insertions and deletions until now leave, one after the other."""
        names = [column.name for column in plan.columns]
        places = [names.index(key) for key in plan.keys]
        rows: list[Row] = []
        for at, (sign, *values) in self._streams[plan.relation]:
            row = tuple(values)
            same = [
                each for each in rows if (all(each[i] == row[i] for i in places) if places else each == row)
            ]
            if at <= now and same and (places or sign == "-"):
                rows.remove(same[0])
            if at <= now and sign == "+":
                rows.append(row)
        return rows

    def _windowed(self, plan: Windowed, now: int) -> list[Row]:
        elements, window = self.stream(plan.input, now), plan.window
        if window.kind is WindowKind.UNBOUNDED:
            return [row for _, row in elements]
        if window.kind is WindowKind.NOW:
            return [row for at, row in elements if at == now]
        if window.kind is WindowKind.RANGE:
            return _in_range(elements, window, now)
        if window.kind is WindowKind.ROWS:
            count = len(elements) - len(elements) % (window.slide or 1)
            return [row for _, row in elements[:count][-window.size :]]
        places = [[column.name for column in plan.columns].index(key) for key in window.keys]
        groups: dict[Row, list[Row]] = {}
        for _, row in elements:
            groups.setdefault(tuple(row[place] for place in places), []).append(row)
        return [row for rows in groups.values() for row in rows[-window.size :]]

    def _joined(self, plan: Join, now: int) -> list[Row]:
        found = []
        for left in self.relation(plan.left, now):
            for right in self.relation(plan.right, now):
                row = {**named(plan.left, left), **named(plan.right, right)}
                equal = all(row[a] is not None and row[a] == row[b] for a, b in plan.equal)
                if equal and (plan.condition is None or value(plan.condition, row) is True):
                    found.append(left + right)
        return found

    def _grouped(self, plan: Aggregate, rows: list[Row]) -> list[Row]:
        groups: dict[Row, list[dict[str, Any]]] = {}
        for row in rows:
            by_name = named(plan.input, row)
            groups.setdefault(tuple(by_name[key] for key in plan.keys), []).append(by_name)
        return [
            (*key, *(aggregate(each, members) for each in plan.aggregates)) for key, members in groups.items()
        ]


def named(plan: Plan, row: Row) -> dict[str, Any]:
    return {column.name: field for column, field in zip(plan.columns, row, strict=True)}


def _in_range(elements: list[Element], window: Window, now: int) -> list[Row]:
    """A tuple is there from its instant on for as long as the window is; with a slide, as of the last one."""
    size, slide = window.size / US, (window.slide or 0) / US
    as_of = now if not slide else math.floor(now / slide) * slide
    return [row for at, row in elements if as_of - size < at <= as_of]


def aggregate(each: Aggregation, rows: list[dict[str, Any]]) -> Any:
    if each.function == "COUNT" and not each.arguments:
        return len(rows)
    columns = [[row[argument] for argument in each.arguments] for row in rows]
    columns = [values for values in columns if None not in values]
    first = [values[0] for values in columns]
    if each.function == "COUNT":
        return len(first)
    if each.function == "TOP":
        ranked = sorted(columns, key=lambda values: (values[-1], values[0]), reverse=True)
        return tuple(values[0] for values in ranked[: each.k])
    if not first:
        return None
    if each.function == "STDDEV":
        return statistics.stdev(first) if len(first) > 1 else None
    if each.function == "COV":
        return statistics.covariance(first, [values[1] for values in columns]) if len(first) > 1 else None
    return {"SUM": sum, "MIN": min, "MAX": max, "AVG": lambda x: sum(x) / len(x)}[each.function](first)


# -- expressions, with NULL as SQL has it -------------------------------------------------------


def value(node: exp.Expr, row: Mapping[str, Any]) -> Any:
    """An expression over a tuple."""
    if isinstance(node, exp.Column):
        return row[node.name]
    if isinstance(node, exp.Literal):
        return node.name if node.args.get("is_string") else (int if node.name.isdigit() else float)(node.name)
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return node.this
    if isinstance(node, exp.Paren):
        return value(node.this, row)
    if isinstance(node, exp.And):
        sides = value(node.this, row), value(node.expression, row)
        return False if False in sides else None if None in sides else True
    if isinstance(node, exp.Or):
        sides = value(node.this, row), value(node.expression, row)
        return True if True in sides else None if None in sides else False
    if isinstance(node, exp.Is):
        return value(node.this, row) is value(node.expression, row)
    if isinstance(node, exp.Coalesce):
        return next((v for e in (node.this, *node.expressions) if (v := value(e, row)) is not None), None)
    if isinstance(node, exp.Case):
        return _case(node, row)
    if isinstance(node, exp.In):
        return _in(node, row)
    if isinstance(node, exp.Cast):
        found = value(node.this, row)
        return found if found is None else int(found) if node.to.this.value in WHOLE else float(found)
    operands = [value(each, row) for each in node.iter_expressions()]
    return None if None in operands else OPERATIONS[type(node)](*operands)


def _case(node: exp.Case, row: Mapping[str, Any]) -> Any:
    for branch in node.args["ifs"]:
        condition = branch.this if node.this is None else exp.EQ(this=node.this, expression=branch.this)
        if value(condition, row) is True:
            return value(branch.args["true"], row)
    return value(node.args["default"], row) if node.args.get("default") is not None else None


def _in(node: exp.In, row: Mapping[str, Any]) -> bool | None:
    wanted, values = value(node.this, row), [value(each, row) for each in node.expressions]
    if wanted is None:
        return None
    return True if wanted in values else None if None in values else False


def _quotient(a: Any, b: Any) -> Any:
    """Without what is behind the point for whole numbers, whatever their signs."""
    if b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a / b


def _modulo(a: Any, b: Any) -> Any:
    """With the sign of the dividend, exact for whole numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) % abs(b) * (1 if a >= 0 else -1)
    return math.fmod(a, b)


OPERATIONS: dict[type, Any] = {
    exp.Neg: lambda a: -a,
    exp.Not: lambda a: not a,
    exp.Add: lambda a, b: a + b,
    exp.Sub: lambda a, b: a - b,
    exp.Mul: lambda a, b: a * b,
    exp.Round: lambda a: math.copysign(math.floor(abs(a) + 0.5), a),
    exp.Div: _quotient,
    nodes.WholeDiv: _quotient,
    exp.Mod: lambda a, b: None if b == 0 else _modulo(a, b),
    exp.EQ: lambda a, b: a == b,
    exp.NEQ: lambda a, b: a != b,
    exp.GT: lambda a, b: a > b,
    exp.GTE: lambda a, b: a >= b,
    exp.LT: lambda a, b: a < b,
    exp.LTE: lambda a, b: a <= b,
    exp.Between: lambda a, low, high: low <= a <= high,
    exp.Abs: abs,
    exp.Like: lambda a, b: (
        re.fullmatch(re.escape(b).replace("%", ".*").replace("_", "."), a, re.S) is not None
    ),
}
