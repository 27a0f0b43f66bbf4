"""Runs a plan as operators that are stepped together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.cql.engine.bag import Changes, Ints, concat
from penstock.cql.engine.base import BaseNode
from penstock.cql.engine.groups import AggregateNode
from penstock.cql.engine.operators import (
    FilterNode,
    JoinNode,
    MapNode,
    Node,
    RowsWindowNode,
    TimeWindowNode,
    ToStreamNode,
    UnionNode,
)
from penstock.cql.engine.vector import arrow_type
from penstock.cql.meaning.check import only_grows
from penstock.cql.meaning.plan import (
    Aggregate,
    Base,
    Distinct,
    Filter,
    Join,
    Map,
    Plan,
    ToStream,
    UnionAll,
    Windowed,
)

ORDER = "_o"
"""Column with the order of a stream's tuples inside one instant."""


def schema_of(plan: Plan) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in plan.columns])


class Engine:
    """Runs a plan over leaves that are fed from outside.

    Args:
        plan: The plan to run.
        leaves: The parts of the plan that are fed. A stream is fed with tuples and their order inside an
            instant; a relation with changes. Changes of a base relation are insertions and deletions, and
            have an order, too.
    """

    def __init__(self, plan: Plan, leaves: Sequence[Plan]) -> None:
        self._leaves = list(leaves)
        self._waiting = [Changes.none(_fed(leaf)) for leaf in leaves]
        self._nodes: dict[int, Node] = {}
        self._plan = plan
        self._add(plan)

    def _leaf(self, plan: Plan) -> int | None:
        return next((i for i, leaf in enumerate(self._leaves) if leaf is plan), None)

    def _add(self, plan: Plan) -> None:
        if isinstance(plan, Base):
            self._nodes[id(plan)] = BaseNode(schema_of(plan), plan.keys)
        elif self._leaf(plan) is None:
            for each in plan.inputs:
                self._add(each)
            self._nodes[id(plan)] = _node(plan)

    def step(self, inputs: Sequence[Changes], until: int) -> Changes:
        """Changes of the answer before an instant.

        Args:
            inputs: New changes of each leaf; changes at the instant or later wait for a later step.
            until: All changes before this instant have come.
        """
        due = []
        for i, changes in enumerate(inputs):
            leaf, base = self._leaves[i], self._nodes.get(id(self._leaves[i]))
            new = base.on_time(changes) if isinstance(base, BaseNode) else changes
            ready, self._waiting[i] = concat([self._waiting[i], new]).until(until)
            due.append(_ordered(ready) if _has_order(leaf) else ready)
        return self._step(self._plan, due, until)

    def _step(self, plan: Plan, due: Sequence[Changes], until: int) -> Changes:
        if (leaf := self._leaf(plan)) is not None:
            return self._nodes[id(plan)].step([due[leaf]], until) if isinstance(plan, Base) else due[leaf]
        return self._nodes[id(plan)].step([self._step(each, due, until) for each in plan.inputs], until)

    def due(self) -> int | None:
        """The next instant at which the answer may change without new input; `None` if there is none."""
        waiting = [int(each.at.min()) for each in self._waiting if len(each)]
        windows = [node.due() for node in self._nodes.values() if isinstance(node, TimeWindowNode)]
        return min((*waiting, *(due for due in windows if due is not None)), default=None)

    def save(self) -> list[pa.Table]:
        """The state that the engine keeps between steps."""
        kept = [waiting.to_table() for waiting in self._waiting]
        return kept + [table for node in self._nodes.values() for table in node.save()]

    def load(self, tables: Sequence[pa.Table]) -> None:
        """Restores the state that an engine of the same plan saved."""
        count = len(self._leaves)
        self._waiting = [Changes.from_table(table) for table in tables[:count]]
        for node in self._nodes.values():
            size = len(node.save())
            node.load(tables[count : count + size])
            count += size


def _fed(leaf: Plan) -> pa.Schema:
    schema = schema_of(leaf)
    return schema.append(pa.field(ORDER, pa.int64())) if _has_order(leaf) else schema


def _has_order(leaf: Plan) -> bool:
    """Whether the order of a leaf's tuples inside one instant matters."""
    return leaf.is_stream or isinstance(leaf, Base)


def _ordered(elements: Changes) -> Changes:
    """A stream's tuples in order, without the column that has the order."""
    order: Ints = np.asarray(elements.rows.column(ORDER).to_numpy(), dtype=np.int64)
    in_time = elements.take(np.lexsort((order, elements.at)).astype(np.int64))
    return in_time.with_rows(in_time.rows.drop_columns([ORDER]))


def _node(plan: Plan) -> Node:
    if isinstance(plan, Windowed):
        schema = schema_of(plan)
        return (
            TimeWindowNode(plan.window, schema)
            if plan.window.by_time
            else RowsWindowNode(plan.window, schema)
        )
    if isinstance(plan, Map):
        return MapNode(plan)
    if isinstance(plan, Filter):
        return FilterNode(plan)
    if isinstance(plan, UnionAll):
        return UnionNode(schema_of(plan), plan.is_stream)
    if isinstance(plan, Join):
        return JoinNode(plan, schema_of(plan.left), schema_of(plan.right))
    if isinstance(plan, ToStream):
        return ToStreamNode(plan.kind, schema_of(plan))
    if isinstance(plan, Distinct):
        names = tuple(column.name for column in plan.columns)
        plan = Aggregate(plan.columns, plan.input, names, ())
    assert isinstance(plan, Aggregate)
    return AggregateNode(plan, schema_of(plan.input), only_grows(plan.input))
