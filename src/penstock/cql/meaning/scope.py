"""Finds the column that a name means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.cql.meaning.plan import Column, Plan


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a query can name.

    Attributes:
        name: Name of the column in the text.
        column: The column of the plan.
        qualifier: The stream or alias before the point; empty for none.
    """

    name: str
    column: Column
    qualifier: str = ""

    def answers(self, name: str, qualifier: str) -> bool:
        """Whether a name means this column."""
        if qualifier and qualifier.lower() != self.qualifier.lower():
            return False
        return name.lower() == self.name.lower()

    @property
    def full(self) -> str:
        return f"{self.qualifier}.{self.name}" if self.qualifier else self.name


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan, and the names of its columns."""

    plan: Plan
    fields: tuple[Field, ...]

    def under(self, qualifier: str) -> Bound:
        """The same plan under another name."""
        return Bound(self.plan, tuple(replace(field, qualifier=qualifier) for field in self.fields))

    def find(self, name: str, qualifier: str) -> list[Field]:
        return [field for field in self.fields if field.answers(name, qualifier)]

    @property
    def qualifiers(self) -> list[str]:
        return list(dict.fromkeys(field.qualifier for field in self.fields if field.qualifier))

    def nearest(self, name: str) -> str:
        """A hint for a name that means nothing."""
        by_lower = {field.name.lower(): field.full for field in self.fields}
        near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
        if near:
            return f"did you mean {by_lower[near[0]]}?"
        return f"columns are {', '.join(field.full for field in self.fields)}"


def unique_names(fields: Iterable[Field]) -> Iterator[str]:
    """Names for the columns of an answer: a name that occurs twice gets its qualifier before it."""
    fields = list(fields)
    names = [field.name.lower() for field in fields]
    taken: set[str] = set()
    for field in fields:
        name = field.name
        if names.count(name.lower()) > 1 and field.qualifier:
            name = f"{field.qualifier}_{name}"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        yield name
