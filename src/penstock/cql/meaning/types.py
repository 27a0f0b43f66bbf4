"""Types of expressions: which types may be added, compared and aggregated, and the types of the results."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from penstock.cql.language.nodes import WholeDiv
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.schema import parse_type

WHOLE = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
BROKEN = frozenset({"FLOAT", "DOUBLE"})
_CHAR = re.compile(r"(?:char|varchar)\(\d+\)|char|varchar|byte")
_STREAM_NAMES = {"int": "bigint", "integer": "bigint", "float": "double", "real": "double"}
"""CQL's own types, as Spark types that are wide enough for sums."""

KEPT = "KEPT"
"""The function that keeps a part of a stream's tuples, or of its windows, at random."""

AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX", "STDDEV", "COV", "TOP")

Words = Callable[[exp.Expr], str]
"""An expression as it is written."""
Refuse = Callable[[exp.Expr, str, str, str], Exception]
"""Makes the error of a rule that an expression breaks: the expression, the rule, what was got, a hint."""


def registered_type(text: str) -> str:
    """A column's type as Spark's DDL names it: CQL's `int`, `float`, `byte` and `char(n)`, or one of Spark's.

    Raises:
        InvalidInputError: There is no such type.
    """
    name = text.strip().lower()
    if _CHAR.fullmatch(name):
        return "STRING"
    return parse_type(_STREAM_NAMES.get(name, name))[0]


def is_numeric(name: str) -> bool:
    return name in WHOLE or name in BROKEN or name.startswith("DECIMAL")


def wider(left: str, right: str) -> str:
    """The type of a sum of two numbers."""
    if left in WHOLE and right in WHOLE:
        return "BIGINT"
    return "DOUBLE"


def are_comparable(left: str, right: str) -> bool:
    if "NULL" in (left, right):
        return True
    return left == right or (is_numeric(left) and is_numeric(right)) or {left, right} == {"DATE", "TIMESTAMP"}


class Typing:
    """Types of bound expressions, whose columns are those of a plan.

    Args:
        columns: Types of the columns by name.
        refuse: Makes an error.
        words: An expression as it is written, for errors.
    """

    def __init__(self, columns: dict[str, str], refuse: Refuse, words: Words) -> None:
        self._columns, self._refuse, self._words = columns, refuse, words

    def of(self, node: exp.Expr) -> str:
        """The type of an expression.

        Raises:
            Exception: The error that `refuse` makes, if the expression has no type.
        """
        for kinds, rule in _RULES:
            if isinstance(node, kinds):
                return rule(self, node)
        raise self._unknown(node)

    def _unknown(self, node: exp.Expr) -> Exception:
        return self._refuse(
            node,
            "an expression has columns, numbers, texts, + - * / %, comparisons, AND, OR, NOT, IN, BETWEEN, "
            "LIKE, IS NULL, CASE, COALESCE, CAST, ABS, ROUND, FLOOR, CEIL, LOWER, UPPER, LENGTH and KEPT",
            self._words(node),
            "write it with these, or compute it in the stream's source",
        )

    def settled(self, node: exp.Expr) -> exp.Expr:
        """The expression as it is computed: whole numbers divide without fractions; casts name plan types."""

        def replaced(inner: exp.Expr) -> exp.Expr:
            # the inside of a replaced node is not visited again, so it is converted first
            if isinstance(inner, exp.Div) and self.of(inner) == "BIGINT":
                return WholeDiv(this=self.settled(inner.this), expression=self.settled(inner.expression))
            if isinstance(inner, exp.Cast):
                return exp.cast(self.settled(inner.this), self.of(inner), copy=False)
            return inner

        return node.transform(replaced, copy=True)

    # -- one rule for each kind of expression ---------------------------------------------------

    def _column(self, node: exp.Expr) -> str:
        return self._columns[node.name]

    def _literal(self, node: exp.Expr) -> str:
        if node.args.get("is_string"):
            return "STRING"
        return "BIGINT" if node.name.isdigit() else "DOUBLE"

    def _inside(self, node: exp.Expr) -> str:
        return self.of(node.this)

    def _number(self, node: exp.Expr) -> str:
        """The type of an operand that must be a number."""
        found = self.of(node)
        if not is_numeric(found) and found != "NULL":
            raise self._refuse(node, "a number", f"{self._words(node)} of type {found}", "compare texts")
        return found

    def _negated(self, node: exp.Expr) -> str:
        return self._number(node.this)

    def _arithmetic(self, node: exp.Expr) -> str:
        return wider(self._number(node.this), self._number(node.expression))

    def _cast(self, node: exp.Expr) -> str:
        self._number(node.this)
        wanted = node.args["to"].sql()
        made = _STREAM_NAMES.get(wanted.lower(), wanted).upper()
        if made not in ("BIGINT", "DOUBLE"):
            raise self._refuse(
                node, "CAST makes a number an int or a float", wanted, "CAST(a AS float), CAST(b AS int)"
            )
        return made

    def _comparison(self, node: exp.Expr) -> str:
        self._compare(node, node.this, node.expression)
        return "BOOLEAN"

    def _compare(self, node: exp.Expr, left: exp.Expr, right: exp.Expr) -> None:
        types = self.of(left), self.of(right)
        if not are_comparable(*types):
            raise self._refuse(
                node,
                "both sides of a comparison have one type",
                f"{self._words(left)} of type {types[0]} and {self._words(right)} of type {types[1]}",
                "texts stand in single quotes, numbers do not",
            )

    def _truth(self, node: exp.Expr) -> str:
        found = self.of(node)
        if found not in ("BOOLEAN", "NULL"):
            raise self._refuse(
                node,
                "a condition",
                f"{self._words(node)} of type {found}",
                "for example value > 30",
            )
        return "BOOLEAN"

    def condition(self, node: exp.Expr) -> None:
        """Refuses an expression that is not true or false."""
        self._truth(node)

    def _connected(self, node: exp.Expr) -> str:
        self._truth(node.this)
        return self._truth(node.expression)

    def _not(self, node: exp.Expr) -> str:
        return self._truth(node.this)

    def _between(self, node: exp.Expr) -> str:
        for bound in ("low", "high"):
            self._compare(node, node.this, node.args[bound])
        return "BOOLEAN"

    def _in(self, node: exp.Expr) -> str:
        if not node.expressions:
            raise self._refuse(
                node,
                "IN has a list of values",
                "a query",
                "join with the query instead: FROM a, b WHERE a.k = b.k",
            )
        for value in node.expressions:
            self._compare(node, node.this, value)
        return "BOOLEAN"

    def _like(self, node: exp.Expr) -> str:
        for side in (node.this, node.expression):
            self._text(side)
        return "BOOLEAN"

    def _text(self, node: exp.Expr) -> str:
        found = self.of(node)
        if found not in ("STRING", "NULL"):
            raise self._refuse(node, "a text", f"{self._words(node)} of type {found}", "'in quotes'")
        return "STRING"

    def _changed_text(self, node: exp.Expr) -> str:
        return self._text(node.this)

    def _length(self, node: exp.Expr) -> str:
        self._text(node.this)
        return "BIGINT"

    def _is(self, node: exp.Expr) -> str:
        if not isinstance(node.expression, (exp.Null, exp.Boolean)):
            raise self._refuse(
                node, "IS has NULL, TRUE or FALSE behind it", self._words(node), "use = for values"
            )
        self.of(node.this)
        return "BOOLEAN"

    def _one_of(self, node: exp.Expr, values: list[exp.Expr]) -> str:
        """The type that all values have."""
        found = "NULL"
        for value in values:
            kind = self.of(value)
            if not are_comparable(found, kind):
                raise self._refuse(
                    value, "all values have one type", f"{found} and {kind}", "make them alike"
                )
            found = kind if found in ("NULL", kind) else found if kind == "NULL" else wider(found, kind)
        return found

    def _case(self, node: exp.Expr) -> str:
        branches = node.args["ifs"]
        for branch in branches:
            if node.this is not None:
                self._compare(branch, node.this, branch.this)
            else:
                self._truth(branch.this)
        default = node.args.get("default")
        values = [branch.args["true"] for branch in branches] + ([default] if default is not None else [])
        return self._one_of(node, values)

    def _coalesce(self, node: exp.Expr) -> str:
        return self._one_of(node, [node.this, *node.expressions])

    def _called(self, node: exp.Expr) -> str:
        """KEPT(fraction) and KEPT(fraction, seconds), the only functions that SQL does not have."""
        if str(node.this).upper() != KEPT:
            raise self._unknown(node)
        numbers = [number_in(each) for each in node.expressions]
        fraction = numbers[0] if numbers else None
        if len(numbers) not in (1, 2) or fraction is None or not 0 <= fraction <= 1 or None in numbers[1:]:
            raise self._refuse(
                node,
                "KEPT has the fraction of tuples that are kept, and a window's seconds if whole ones are",
                self._words(node),
                "KEPT(0.3), or KEPT(0.3, 60)",
            )
        if len(numbers) == 2 and not numbers[1]:
            raise self._refuse(node, "a window is longer than 0", self._words(node), "KEPT(0.3, 60)")
        return "BOOLEAN"

    def _rounded(self, node: exp.Expr) -> str:
        found = self._number(node.this)
        return found if isinstance(node, (exp.Abs, exp.Round)) else "BIGINT"


_RULES: list[tuple[tuple[type, ...], Callable[[Typing, exp.Expr], str]]] = [
    ((exp.Column,), Typing._column),
    ((exp.Literal,), Typing._literal),
    ((exp.Boolean,), lambda *_: "BOOLEAN"),
    ((exp.Null,), lambda *_: "NULL"),
    ((exp.Paren,), Typing._inside),
    ((exp.Neg,), Typing._negated),
    ((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, WholeDiv), Typing._arithmetic),
    ((exp.Cast,), Typing._cast),
    ((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), Typing._comparison),
    ((exp.And, exp.Or), Typing._connected),
    ((exp.Not,), Typing._not),
    ((exp.Between,), Typing._between),
    ((exp.In,), Typing._in),
    ((exp.Like,), Typing._like),
    ((exp.Is,), Typing._is),
    ((exp.Case,), Typing._case),
    ((exp.Coalesce,), Typing._coalesce),
    ((exp.Abs, exp.Round, exp.Floor, exp.Ceil), Typing._rounded),
    ((exp.Lower, exp.Upper), Typing._changed_text),
    ((exp.Length,), Typing._length),
    ((exp.Anonymous,), Typing._called),
]


def number_in(node: exp.Expr) -> float | None:
    """The value of a number as it is written; `None` for anything else, also with a minus."""
    return float(node.name) if isinstance(node, exp.Literal) and not node.is_string else None


def aggregate_type(function: str, arguments: list[str]) -> str:
    """The type of an aggregate's result, by the types of its arguments.

    Raises:
        InvalidInputError: The aggregate does not take these types.
    """
    if function == "COUNT":
        return "BIGINT"
    if function == "TOP":
        if not are_comparable(arguments[-1], arguments[-1]) or arguments[-1] == "BOOLEAN":
            raise InvalidInputError("TOP orders by numbers, texts or times", arguments[-1], "TOP5(id, value)")
        return f"ARRAY<{arguments[0]}>"
    if function in ("MIN", "MAX"):
        return arguments[0]
    for found in arguments:
        if not is_numeric(found):
            raise InvalidInputError(
                f"{function} is over numbers", f"type {found}", "COUNT, MIN and MAX take any"
            )
    return "BIGINT" if function == "SUM" and arguments[0] in WHOLE else "DOUBLE"
