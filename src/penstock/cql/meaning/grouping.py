"""GROUP BY: the keys and aggregates of a query, and its expressions over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from penstock.cql.meaning.expressions import (
    TOP,
    aggregate_in,
    function_name,
    is_aggregate,
    reference,
    rewritten,
)
from penstock.cql.meaning.plan import Aggregate, Aggregation, Column, Map, Plan
from penstock.cql.meaning.types import Typing, aggregate_type
from penstock.vocabulary.errors import InvalidInputError

if TYPE_CHECKING:
    from penstock.cql.meaning.bind import Binder

_USES = {"COV": "COV(a.value, b.value)", "TOP": "TOP5(id, value)"}


class Grouping:
    """Collects the keys and aggregates of a query, and rewrites expressions over them."""

    def __init__(self, binder: Binder, typing: Typing, keys: list[exp.Expr]) -> None:
        self._binder, self._typing, self._keys = binder, typing, keys
        self._key_columns = [binder.column(typing.of(key)) for key in keys]
        self._inputs: list[tuple[exp.Expr, Column]] = list(zip(keys, self._key_columns, strict=True))
        self._aggregates: list[tuple[Aggregation, Column]] = []

    def over_groups(self, node: exp.Expr) -> exp.Expr:
        """Rewrites an expression over tuples as an expression over groups."""

        def replaced(inner: exp.Expr) -> exp.Expr:
            for key, column in zip(self._keys, self._key_columns, strict=True):
                if inner == key:
                    return reference(column, inner)
            if is_aggregate(inner):
                return reference(self._aggregate(inner), inner)
            if isinstance(inner, exp.Column):
                self._binder.refuse(
                    inner,
                    "what is selected beside aggregates is in GROUP BY",
                    self._binder.words(inner),
                    "add it to GROUP BY, or aggregate it, for example max(...)",
                )
            return inner

        return rewritten(node, replaced)

    def _aggregate(self, call: exp.Expr) -> Column:
        function, arguments, k = self._call(call)
        columns = [self._input(argument) for argument in arguments]
        made = Aggregation(function, tuple(column.name for column in columns), k)
        for known, column in self._aggregates:
            if known == made:
                return column
        try:
            kind = aggregate_type(function, [column.type for column in columns])
        except InvalidInputError as error:
            raise self._binder.error(call, error.rule, str(error.got), error.hint) from error
        self._aggregates.append((made, self._binder.column(kind)))
        return self._aggregates[-1][1]

    def _call(self, call: exp.Expr) -> tuple[str, list[exp.Expr], int]:
        """Name, arguments and k of an aggregate."""
        name = function_name(call)
        top = TOP.fullmatch(name)
        function = "TOP" if top else name
        arguments = list(call.expressions) if isinstance(call, exp.Anonymous) else []
        if not isinstance(call, exp.Anonymous):
            arguments = [each for each in (call.this, call.args.get("expression")) if each is not None]
            arguments += call.expressions
        if any(isinstance(each, exp.Distinct) for each in arguments):
            self._binder.refuse(
                call,
                "an aggregate is over all tuples",
                "DISTINCT",
                "aggregate over (SELECT DISTINCT ...) in FROM",
            )
        if function == "COUNT" and len(arguments) == 1 and isinstance(arguments[0], exp.Star):
            return function, [], 0
        wanted = {"COV": (2,), "TOP": (1, 2)}.get(function, (1,))
        if len(arguments) not in wanted:
            rule = f"{name} has {' or '.join(str(number) for number in wanted)} arguments"
            self._binder.refuse(call, rule, str(len(arguments)), _USES.get(function, f"{name}(value)"))
        for argument in arguments:
            if (inner := aggregate_in(argument)) is not None:
                self._binder.refuse(
                    inner, "aggregates are not inside each other", self._binder.words(inner), "use a view"
                )
        if top and not 1 <= int(top[1]) <= 1000:
            self._binder.refuse(call, "TOP has 1 to 1000 places", top[1], "TOP5(id, value)")
        return function, arguments, int(top[1]) if top else 0

    def _input(self, argument: exp.Expr) -> Column:
        """The input column for an argument of an aggregate."""
        for known, column in self._inputs:
            if known == argument:
                return column
        self._inputs.append((argument, self._binder.column(self._typing.of(argument))))
        return self._inputs[-1][1]

    def plan(self, below: Plan) -> Plan:
        """The groups over a plan."""
        columns = tuple(column for _, column in self._inputs)
        mapped = Map(columns, below, tuple(self._typing.settled(value) for value, _ in self._inputs))
        keys = tuple(column.name for column in self._key_columns)
        outer = (*self._key_columns, *(column for _, column in self._aggregates))
        return Aggregate(outer, mapped, keys, tuple(made for made, _ in self._aggregates))
