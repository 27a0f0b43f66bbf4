"""The plan of a query: a tree of operators over streams and relations, independent of how it is run.

A *stream* is a bag of tuples with timestamps. A *relation* is a bag of tuples that changes over time. Windows
turn streams into relations, relational operators turn relations into relations, and ISTREAM, DSTREAM and
RSTREAM turn relations into streams. Every operator has column names of its own, `c0`, `c1`, ..., so that
expressions need no scopes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from sqlglot import exp


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a plan: its name inside the plan, and its type as Spark's DDL names it."""

    name: str
    type: str


class WindowKind(Enum):
    NOW = "NOW"
    UNBOUNDED = "UNBOUNDED"
    RANGE = "RANGE"
    ROWS = "ROWS"
    PARTITION = "PARTITION"


@dataclass(frozen=True, slots=True)
class Window:
    """Which tuples of a stream are in its relation.

    Attributes:
        kind: Kind of the window: by time, by number, or by number in each partition.
        size: Microseconds for RANGE and NOW, tuples for ROWS and PARTITION.
        slide: Slide in the same unit; `None` if the window moves with every tuple and every instant.
        keys: Columns of PARTITION.
    """

    kind: WindowKind
    size: int = 0
    slide: int | None = None
    keys: tuple[str, ...] = ()

    @property
    def by_time(self) -> bool:
        """Whether it is known, when a tuple comes, when the tuple will leave."""
        return self.kind in (WindowKind.NOW, WindowKind.UNBOUNDED, WindowKind.RANGE)


@dataclass(frozen=True, slots=True)
class Plan:
    """An operator; `inputs` are the operators that it reads."""

    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return ()

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream, not a relation."""
        return False

    def walk(self) -> Iterator[Plan]:
        """This operator and all below it."""
        yield self
        for each in self.inputs:
            yield from each.walk()


@dataclass(frozen=True, slots=True)
class Scan(Plan):
    """A registered stream: its columns are those of the stream, in the same order."""

    stream: str

    @property
    def is_stream(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Base(Plan):
    """A registered relation: its columns are those of its tuples, in the same order.

    Attributes:
        relation: Name of the relation.
        keys: Columns that identify a tuple; none if equal tuples may be there several times.
    """

    relation: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Windowed(Plan):
    """The relation that a window makes of a stream."""

    input: Plan
    window: Window

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class Filter(Plan):
    input: Plan
    condition: exp.Expr

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.input,)

    @property
    def is_stream(self) -> bool:
        return self.input.is_stream


@dataclass(frozen=True, slots=True)
class Map(Plan):
    """Expressions over the columns of its input, one for each of its own columns."""

    input: Plan
    items: tuple[exp.Expr, ...]

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.input,)

    @property
    def is_stream(self) -> bool:
        return self.input.is_stream


@dataclass(frozen=True, slots=True)
class Join(Plan):
    """All pairs of tuples that fulfil the condition; columns of the left side, then of the right side.

    Attributes:
        left, right: The sides of the join; their columns have different names.
        equal: Pairs of a left and a right column that must be equal.
        condition: Further condition; `None` if there is none.
    """

    left: Plan
    right: Plan
    equal: tuple[tuple[str, str], ...]
    condition: exp.Expr | None

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregate: COUNT (without arguments: of tuples), SUM, AVG, MIN, MAX, STDDEV, COV or TOP.

    Attributes:
        function: Name of the function in upper letters.
        arguments: Columns of the input.
        k: Number of tuples of TOP.
    """

    function: str
    arguments: tuple[str, ...]
    k: int = 0


@dataclass(frozen=True, slots=True)
class Aggregate(Plan):
    """Groups by columns of the input; its columns are the keys, then the aggregates.

    Without keys there is one group, which is empty (no tuple at all) as long as its input is.
    """

    input: Plan
    keys: tuple[str, ...]
    aggregates: tuple[Aggregation, ...]

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class Distinct(Plan):
    input: Plan

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class UnionAll(Plan):
    """All tuples of both sides, which have columns of the same types; a stream if both sides are streams."""

    left: Plan
    right: Plan

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.left, self.right)

    @property
    def is_stream(self) -> bool:
        return self.left.is_stream


@dataclass(frozen=True, slots=True)
class ToStream(Plan):
    """ISTREAM: tuples that came at an instant; DSTREAM: tuples that left; RSTREAM: all tuples present."""

    input: Plan
    kind: str

    @property
    def inputs(self) -> tuple[Plan, ...]:
        return (self.input,)

    @property
    def is_stream(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Query:
    """A query that can be run: its plan, and the names of its columns."""

    plan: Plan
    names: tuple[str, ...]
