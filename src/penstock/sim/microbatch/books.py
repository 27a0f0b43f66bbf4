"""What a virtual cluster is judged by: exact books, and true delays."""

from __future__ import annotations

import numpy as np

from penstock.sim.microbatch.cluster import VirtualCluster
from penstock.sim.microbatch.query import SimulatedQuery
from penstock.vocabulary.errors import PenstockError


class BooksError(PenstockError, AssertionError):
    """offered = admitted + shed + waiting does not hold."""


def check_books(cluster: VirtualCluster) -> None:
    """offered = admitted + shed + waiting, and offered is what the log has, or had when the query left.

    Raises:
        BooksError: It is not so.
    """
    classes = cluster.status().classes
    for query in cluster.queries.values():
        found = classes[query.cls].queries[query.key]
        _require(
            found.offered == found.admitted + found.shed + found.waiting,
            f"query {query.key}: offered = admitted + shed + waiting; got: {found}",
        )
        there = sum(log.end(p) for log in query.logs.values() for p in range(log.partitions))
        exact = found.offered <= there if query.stopped else found.offered == there
        _require(exact, f"query {query.key}: offered is what the log has, {there}; got: {found.offered}")
        ran = sum(batch.books.admitted for batch in query.batches)
        _require(found.admitted == ran, f"query {query.key}: admitted {found.admitted}, batches {ran}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise BooksError(text)


def admitted_between(query: SimulatedQuery, from_s: float, to_s: float) -> int:
    """Rows of the batches that were done between two moments."""
    return sum(b.books.admitted for b in query.batches if from_s <= b.done_s < to_s)


def delay(query: SimulatedQuery, quantile: float, from_s: float) -> float:
    """A percentile of the true delays of rows whose batch was done after a moment."""
    batches = [b for b in query.batches if b.done_s >= from_s]
    delays_s, rows = np.concatenate([b.delays_s for b in batches]), np.concatenate([b.rows for b in batches])
    order = np.argsort(delays_s)
    upto = np.cumsum(rows[order])
    return float(delays_s[order][np.searchsorted(upto, quantile * upto[-1])])
