"""Operator networks of the simulated engine: operators, their costs, their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from penstock.vocabulary.errors import InvalidInputError, require_positive
from penstock.vocabulary.model import reject_duplicates


class Kind(IntEnum):
    """Kinds of operators. Select, project and aggregate differ only in cost and selectivity."""

    SOURCE = 0
    OPERATOR = 1
    JOIN = 2
    OUTPUT = 3


@dataclass(frozen=True, slots=True)
class Operator:
    """One box of the network.

    Attributes:
        name: A name that is unique in the network.
        kind: See `Kind`.
        cost_s: CPU seconds an input tuple takes.
        selectivity: Output tuples an input tuple gives. For a join: the probability that a pair matches.
        inputs: Names of the upstream operators (a join has two, a source none). Several operators
            may name the same input: it is then shared and feeds each of them.
        window_s: Range of both windows of a join.
        probe_cost_s: CPU seconds a join spends on each tuple of the other window.
        weight: Share of a scheduling turn under weighted round robin.
        label: Group under which an output's delays are reported (a priority, a query).
        cls: Class in whose time the operator runs; empty in networks of a single class.
    """

    name: str
    kind: Kind
    cost_s: float
    selectivity: float = 1.0
    inputs: tuple[str, ...] = ()
    window_s: float = 0.0
    probe_cost_s: float = 0.0
    weight: float = 1.0
    label: str = "all"
    cls: str = ""

    def __post_init__(self) -> None:
        require_positive(f"operator {self.name}: cost_s", self.cost_s, "CPU seconds a tuple, e.g. 0.0005")
        require_positive(f"operator {self.name}: weight", self.weight, "1 is a normal share")
        if self.selectivity < 0:
            raise InvalidInputError(
                f"operator {self.name}: selectivity must not be negative",
                self.selectivity,
                "1 passes everything",
            )
        if self.selectivity != 1.0 and self.kind in (Kind.SOURCE, Kind.OUTPUT):
            raise InvalidInputError(
                f"operator {self.name}: kind {self.kind.name.lower()} passes every tuple on",
                f"selectivity {self.selectivity:g}",
                "put a select behind the source",
            )
        expected = {Kind.SOURCE: 0, Kind.JOIN: 2}.get(self.kind, 1)
        if len(self.inputs) != expected:
            raise InvalidInputError(
                f"operator {self.name}: kind {self.kind.name.lower()} has {expected} inputs",
                len(self.inputs),
                "name the upstream operators in `inputs`",
            )
        if self.kind is Kind.JOIN:
            require_positive(
                f"join {self.name}: window_s", self.window_s, "the range of its windows in seconds"
            )


@dataclass(frozen=True)
class Network:
    """Operators in topological order, as the round robin visits them.

    Attributes:
        name: Name in tables and run directories.
        operators: Operators; each comes after its inputs.
        turn_cost_s: CPU seconds each batch costs whatever its size (context switch): the batch effect.
        drop_cost_s: CPU seconds the source spends on a row that it reads and sheds.
        batch_rows: Most tuples an operator processes in one batch.
        queue_rows: Size of every physical queue; a full one pauses its upstream operator.
        delay_of_filtered: Whether a tuple that a select discards counts as completed with its delay
            (tu2006) or only outputs do (pham2016, definition 3).
    """

    name: str
    operators: tuple[Operator, ...]
    turn_cost_s: float = 0.0
    drop_cost_s: float = 0.0
    batch_rows: int = 50
    queue_rows: int = 4096
    delay_of_filtered: bool = False

    def __post_init__(self) -> None:
        reject_duplicates("operator", [op.name for op in self.operators])
        known: set[str] = set()
        for op in self.operators:
            for name in op.inputs:
                if name not in known:
                    raise InvalidInputError(
                        f"operator {op.name} reads from an operator that comes before it",
                        repr(name),
                        "list operators in topological order, sources first",
                    )
            known.add(op.name)
        for i in self.entries:
            if self.operators[i].kind is Kind.JOIN:
                raise InvalidInputError(
                    "tuples of another class enter through an operator with one input",
                    f"join {self.operators[i].name}",
                    "put a project in front of it",
                )
        if not any(op.kind is Kind.SOURCE for op in self.operators):
            raise InvalidInputError("a network has a source", "none", "add an operator of kind SOURCE")
        if not any(op.kind is Kind.OUTPUT for op in self.operators):
            raise InvalidInputError("a network has an output", "none", "add an operator of kind OUTPUT")

    @cached_property
    def index(self) -> dict[str, int]:
        return {op.name: i for i, op in enumerate(self.operators)}

    @cached_property
    def downstream(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the operators that read its output."""
        readers: list[list[int]] = [[] for _ in self.operators]
        for i, op in enumerate(self.operators):
            for name in op.inputs:
                readers[self.index[name]].append(i)
        return tuple(tuple(r) for r in readers)

    @cached_property
    def sources(self) -> tuple[int, ...]:
        return tuple(i for i, op in enumerate(self.operators) if op.kind is Kind.SOURCE)

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """Entries of rows into a class: its sources, then operators that read output of another class."""
        of = {op.name: op.cls for op in self.operators}
        shared = [i for i, op in enumerate(self.operators) if any(of[name] != op.cls for name in op.inputs)]
        return (*self.sources, *shared)

    @cached_property
    def downstream_in_class(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the operators of its own class that read its output."""
        ops = self.operators
        return tuple(
            tuple(d for d in readers if ops[d].cls == ops[i].cls) for i, readers in enumerate(self.downstream)
        )

    @cached_property
    def is_tree_of_rows(self) -> bool:
        """Whether every tuple inside represents exactly one source row (no fan-out, no join)."""
        return all(len(d) <= 1 for d in self.downstream) and all(
            op.kind is not Kind.JOIN and op.selectivity <= 1 for op in self.operators
        )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op.label for op in self.operators if op.kind is Kind.OUTPUT))

    def cost_per_row_s(self, batch_rows: int | None = None) -> float:
        """Mean load coefficient of the sources at a batch size: the c of the papers, from the specification.

        Joins are counted at an empty window, so the figure is a lower bound for networks with joins.
        """
        overhead = self.turn_cost_s / (batch_rows or self.batch_rows)
        coefficient = [0.0] * len(self.operators)
        for i in reversed(range(len(self.operators))):
            op = self.operators[i]
            passed = op.selectivity if op.kind is not Kind.JOIN else 0.0
            coefficient[i] = op.cost_s + overhead + passed * sum(coefficient[d] for d in self.downstream[i])
        return sum(coefficient[s] for s in self.sources) / len(self.sources)
