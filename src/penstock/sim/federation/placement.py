"""Placement of fragments on nodes. Fragments of one query run on different nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.policies.quality.sic import IntArray
from penstock.vocabulary.errors import InvalidInputError, require_positive
from penstock.vocabulary.model import FloatArray


def weighted(fragments: Sequence[int], weights: FloatArray, seed: int) -> IntArray:
    """Nodes drawn by weight, without replacement inside a query.

    Args:
        fragments: Number of fragments of each query.
        weights: Weight of each node.
        seed: Seed of the draw.
    """
    _check(fragments, weights.size)
    rng = np.random.default_rng((seed, 2))
    # the k largest of log(weight) + Gumbel noise are a draw of k without replacement
    keys = np.log(weights) + rng.gumbel(size=(len(fragments), weights.size))
    order = np.argsort(-keys, axis=1)
    return np.concatenate([order[i, :count] for i, count in enumerate(fragments)]).astype(np.int64)


def zipf(fragments: Sequence[int], nodes: int, seed: int, exponent: float = 1.0) -> IntArray:
    """Node r is drawn with weight 1 / r^exponent."""
    return weighted(fragments, np.arange(1, nodes + 1, dtype=float) ** -exponent, seed)


def zipf_clusters(
    fragments: Sequence[int], nodes: int, seed: int, clusters: int, ratio: float = 2.0
) -> IntArray:
    """Zipf as fiscato2012 6.1 has it: clusters of nodes, each with twice the fragments of the one before."""
    require_positive("ratio of neighbouring clusters", ratio, "2 in the thesis")
    if not 1 <= clusters <= nodes:
        raise InvalidInputError(
            "a cluster has at least one node", f"{clusters} clusters of {nodes} nodes", "use fewer clusters"
        )
    cluster = np.arange(nodes) * clusters // nodes
    return weighted(fragments, ratio ** cluster.astype(float) / np.bincount(cluster)[cluster], seed)


def uniform(fragments: Sequence[int], nodes: int, seed: int) -> IntArray:
    """Nodes drawn with the same weight."""
    return weighted(fragments, np.ones(nodes), seed)


def round_robin(fragments: Sequence[int], nodes: int) -> IntArray:
    """Fragments on one node after the other."""
    _check(fragments, nodes)
    return np.arange(sum(fragments), dtype=np.int64) % nodes


def least_loaded(fragments: Sequence[int], load: Sequence[float], nodes: int) -> IntArray:
    """Each query's fragments on the nodes with the least load so far.

    Args:
        fragments: Number of fragments of each query.
        load: Load of one fragment of each query.
        nodes: Number of nodes.
    """
    _check(fragments, nodes)
    so_far = np.zeros(nodes)
    chosen = []
    for count, each in zip(fragments, load, strict=True):
        best = np.argsort(so_far, kind="stable")[:count]
        so_far[best] += each
        chosen.append(best)
    return np.concatenate(chosen).astype(np.int64)


def _check(fragments: Sequence[int], nodes: int) -> None:
    if not fragments or max(fragments) > nodes:
        raise InvalidInputError(
            "a query has no more fragments than there are nodes",
            f"{max(fragments, default=0)} fragments on {nodes} nodes",
            "each fragment of a query needs a node of its own",
        )
