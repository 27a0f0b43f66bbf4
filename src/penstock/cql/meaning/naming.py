"""Resolves the names in a query's text, and makes errors that say where a name is."""

from __future__ import annotations

from typing import NoReturn

from sqlglot import exp

from penstock.cql.errors import CqlError, Place
from penstock.cql.language import nodes
from penstock.cql.language.dialect import to_text
from penstock.cql.meaning.expressions import place_of, reference
from penstock.cql.meaning.scope import Bound, Field
from penstock.cql.meaning.types import Typing

TUPLE = "t"
"""THEMIS's name for the tuple of a query's only stream: `SELECT avg(t.v) FROM readings`."""
LONGEST_WORDS = 40
"""Most characters of an expression in a message."""


class Naming:
    """Binds the names of expressions of one text."""

    def __init__(self, text: str) -> None:
        self._text = text

    # -- errors ---------------------------------------------------------------------------------

    def error(self, node: exp.Expr, rule: str, got: str, hint: str) -> CqlError:
        return CqlError(rule, got, hint, self._text, place_of(node))

    def words(self, node: exp.Expr) -> str:
        """An expression as it is written, or its beginning."""
        place = place_of(node)
        written = to_text(node) if place is None else self._balanced(place)
        written = " ".join(written.split())
        return written if len(written) <= LONGEST_WORDS else written[: LONGEST_WORDS - 3] + "..."

    def _balanced(self, place: Place) -> str:
        """The text from a place to the end of its parentheses; only the place of a call's name is known."""
        end, open_ = place.end, self._text.count("(", place.start, place.end)
        open_ -= self._text.count(")", place.start, place.end)
        while open_ > 0 and end < len(self._text):
            open_ += {"(": 1, ")": -1}.get(self._text[end], 0)
            end += 1
        return self._text[place.start : end]

    def refuse(self, node: exp.Expr, rule: str, got: str, hint: str) -> NoReturn:
        raise self.error(node, rule, got, hint)

    # -- expressions ----------------------------------------------------------------------------

    def expression(self, node: exp.Expr, scope: Bound) -> exp.Expr:
        """The same expression with columns of the plan instead of names."""
        for inner in node.walk():
            if isinstance(inner, (exp.Query, exp.Window, nodes.ToStream)):
                self.refuse(
                    inner,
                    "an expression has no query and no OVER inside",
                    to_text(inner),
                    "put it into FROM, or REGISTER a VIEW",
                )
            if isinstance(inner, exp.Star) and not isinstance(inner.parent, exp.Count):
                self.refuse(inner, "* stands alone or in count(*)", self.words(node), "name the columns")

        def replaced(inner: exp.Expr) -> exp.Expr:
            if not isinstance(inner, exp.Column):
                return inner
            return reference(self.field(inner, inner.name, inner.table, scope).column, inner)

        return node.transform(replaced, copy=True)

    def field(self, node: exp.Expr, name: str, qualifier: str, scope: Bound) -> Field:
        qualifier = self.qualifier(qualifier, scope)
        found = scope.find(name, qualifier)
        if len(found) == 1:
            return found[0]
        written = f"{qualifier}.{name}" if qualifier else name
        if found:
            choices = " or ".join(field.full for field in found)
            self.refuse(
                node, "a column's name means one column", f"{written!r}, which is {choices}", "qualify it"
            )
        if qualifier and qualifier.lower() not in (known.lower() for known in scope.qualifiers):
            known = ", ".join(scope.qualifiers) or "no name is in FROM"
            self.refuse(node, "a name before a point is in FROM", repr(qualifier), f"known: {known}")
        raise self.error(node, "a column is one of those in FROM", repr(written), scope.nearest(name))

    def qualifier(self, qualifier: str, scope: Bound) -> str:
        """The resolved qualifier; `t` is the tuple of the only source, as in THEMIS."""
        if qualifier.lower() == TUPLE and len(scope.qualifiers) == 1:
            return scope.qualifiers[0]
        return qualifier

    def typing(self, scope: Bound) -> Typing:
        return Typing(
            {field.column.name: field.column.type for field in scope.fields}, self.error, self.words
        )
