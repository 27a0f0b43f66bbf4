"""Queries of a federation as arrays: fragments in trees and chains, their sources, and their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.policies.quality.sic import IntArray
from penstock.vocabulary.errors import InvalidInputError, require_positive
from penstock.vocabulary.model import FloatArray

TO_USER = -1
"""Value of `downstream` for a root fragment, which sends to the user."""


@dataclass(frozen=True, slots=True)
class QueryKind:
    """Properties that the fragments of a query have in common (kalyvianaki2016 table 1).

    Attributes:
        name: Name in the paper.
        sources: Number of sources of one fragment.
        output_rows: Number of tuples that a fragment emits for each of its windows.
        shape: In a tree, every fragment sends to the root; in a chain, each sends to the next.
    """

    name: str
    sources: int
    output_rows: int
    shape: Literal["tree", "chain"]


AVG = QueryKind("avg", 1, 1, "chain")
AVG_ALL = QueryKind("avg-all", 10, 1, "tree")
TOP_5 = QueryKind("top-5", 20, 5, "chain")
COV = QueryKind("cov", 2, 1, "chain")
COMPLEX = (AVG_ALL, TOP_5, COV)
"""Kinds of queries of the complex workload."""


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """One query.

    Attributes:
        kind: Kind of the query.
        fragments: Number of fragments of the query; each fragment has its own sources.
        rows_per_s: Rate of one source.
        batches_per_s: Number of batches that a source sends in a second.
        cost: Cost of a row of the query, relative to a row of cost one.
    """

    kind: QueryKind
    fragments: int = 1
    rows_per_s: float = 150.0
    batches_per_s: float = 3.0
    cost: float = 1.0

    def __post_init__(self) -> None:
        if self.fragments < 1:
            raise InvalidInputError(
                "a query has one fragment at the least", self.fragments, "1 to 6 in the paper"
            )
        require_positive(f"rate of {self.kind.name}", self.rows_per_s, "rows a second of one source")
        require_positive(f"batches of {self.kind.name}", self.batches_per_s, "batches a second of one source")
        require_positive(f"cost of {self.kind.name}", self.cost, "1 for a row like any other")


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A federation's queries by fragment and by source.

    Attributes:
        specs: The queries.
        nodes: Number of nodes.
        query: Query of each fragment.
        node: Node of each fragment; fragments of one query run on different nodes.
        downstream: The fragment to which each fragment sends, or `TO_USER`.
        hops: Number of fragments between each fragment and the user.
        output_rows: Number of tuples of each fragment's output for a window.
        cost: Cost of a row of each fragment.
        source_fragment: Fragment of each source.
        source_rows_per_s: Rate of each source.
        source_batches_per_s: Batches a second of each source.
    """

    specs: tuple[QuerySpec, ...]
    nodes: int
    query: IntArray
    node: IntArray
    downstream: IntArray
    hops: IntArray
    output_rows: IntArray
    cost: FloatArray
    source_fragment: IntArray
    source_rows_per_s: FloatArray
    source_batches_per_s: FloatArray

    @classmethod
    def of(cls, specs: Sequence[QuerySpec], node: IntArray, nodes: int) -> Layout:
        """Lays queries out.

        Args:
            specs: The queries.
            node: Node of each fragment; fragments of a query follow each other, the root first.
            nodes: Number of nodes.
        """
        counts = np.array([spec.fragments for spec in specs], np.int64)
        if node.size != counts.sum() or node.size == 0 or not 0 <= node.min() <= node.max() < nodes:
            raise InvalidInputError(
                "every fragment has one of the nodes",
                f"{node.size} nodes for {counts.sum()} fragments",
                "number nodes from 0",
            )
        query = np.repeat(np.arange(len(specs)), counts)
        if np.unique(query * nodes + node).size != node.size:
            raise InvalidInputError(
                "fragments of a query run on different nodes",
                "two fragments on one node",
                "see penstock.sim.federation.placement",
            )
        root = np.repeat(np.cumsum(counts) - counts, counts)
        number = np.arange(node.size) - root
        tree = np.array([spec.kind.shape == "tree" for spec in specs])[query]
        downstream = np.where(tree, root, root + number - 1)
        downstream[number == 0] = TO_USER

        def by_fragment(values: list[float]) -> FloatArray:
            return np.array(values, float)[query]

        sources = by_fragment([spec.kind.sources for spec in specs]).astype(np.int64)
        source_fragment = np.repeat(np.arange(node.size), sources)
        return cls(
            tuple(specs),
            nodes,
            query,
            node.astype(np.int64),
            downstream,
            np.where(tree, np.minimum(number, 1), number),
            by_fragment([spec.kind.output_rows for spec in specs]).astype(np.int64),
            by_fragment([spec.cost for spec in specs]),
            source_fragment,
            by_fragment([spec.rows_per_s for spec in specs])[source_fragment],
            by_fragment([spec.batches_per_s for spec in specs])[source_fragment],
        )

    @property
    def queries(self) -> int:
        return len(self.specs)

    @property
    def fragments(self) -> int:
        return int(self.query.size)

    @property
    def sources_of_query(self) -> IntArray:
        """|S| of each query."""
        return np.bincount(self.query[self.source_fragment], minlength=self.queries)

    @property
    def offered_per_s(self) -> FloatArray:
        """Rows a second, in rows of cost one, that sources offer each node."""
        load = self.source_rows_per_s * self.cost[self.source_fragment]
        per_node = np.bincount(self.node[self.source_fragment], weights=load, minlength=self.nodes)
        return per_node.astype(np.float64)


def mixed(
    queries: int, fragments: tuple[int, int], seed: int, kinds: Sequence[QueryKind] = COMPLEX, **spec: float
) -> list[QuerySpec]:
    """Kinds in turn, each query with a random number of fragments between two bounds."""
    low, high = fragments
    numbers = np.random.default_rng((seed, 1)).integers(low, high + 1, queries)
    return [QuerySpec(kinds[i % len(kinds)], int(n), **spec) for i, n in enumerate(numbers)]
