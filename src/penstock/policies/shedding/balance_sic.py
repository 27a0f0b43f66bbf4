"""BALANCE-SIC (kalyvianaki2016 algorithm 1; fiscato2012 algorithm 1): equal loss of information for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.policies.shedding.base import (
    BatchShedder,
    ShedDecision,
    ShedObservation,
    decision,
    describe,
    fitting,
    projected_sic,
)
from penstock.vocabulary.model import FloatArray

_STEPS = 1e12
"""SIC values are rounded to multiples of 1 / this before they are compared: 3 x 1/30 equals 2 x 1/20."""
_INDEX_BITS = 20
_KEYS = np.uint64((1 << 64 - _INDEX_BITS) - 1)


@dataclass(frozen=True, slots=True)
class BalanceSicConfig:
    """Settings of BALANCE-SIC.

    Attributes:
        projection: Whether each query begins with its reported SIC less the SIC of its waiting batches
            (section 6), or with the reported SIC itself.
    """

    projection: bool = True

    def build(self, seed: int = 0) -> BalanceSicShedder:
        return BalanceSicShedder(self, seed)


class BalanceSicShedder(BatchShedder):
    """Assumes that all waiting batches are dropped, then keeps batches where they are missed most.

    The shedder starts from the projected SIC of each query. It takes the query with the lowest SIC (among
    equal queries one at random), and keeps the query's batch with the highest SIC a row. It adds the SIC of
    the batch to that of the query, and takes the next query, until the capacity is used. Once a query's next
    batch does not fit, the shedder keeps no more batches of this query and goes on with the others.

    This is algorithm 1 with erratum 4: batches of q' are kept until it passes q'', the lowest query whose SIC
    differs. It needs no priority queue. A query's batches come in falling order of their SIC a row, and its
    k-th batch is taken when its level

        level_k = projected + sic_1 + ... + sic_(k-1)

    is the lowest of all. Levels of a query do not fall, so the order in which a priority queue would hand
    out all batches is the order of their levels, and two sorts find it: O(batches log batches + queries).
    """

    name = "balance-sic"

    def _choose(self, observation: ShedObservation, load: FloatArray) -> ShedDecision:
        start = projected_sic(observation, less_buffer=self.config.projection)
        order = self._order(observation, start)
        taken = fitting(order, load, observation.capacity)
        keep = load <= 0
        keep[order[:taken]] = True
        left = observation.capacity - float(load[order[:taken]].sum())
        _fill_up(keep, order[taken:], observation.batches.query, load, left)
        unknown = int(np.isnan(observation.reported_sic).sum())
        how = f"lowest SIC first{f', {unknown} queries not reported on yet' if unknown else ''}"
        return decision(observation, keep, load, describe(observation, keep, load, how))

    def _order(self, observation: ShedObservation, start: FloatArray) -> IntArray:
        """The order in which algorithm 1 would keep all batches if there were room."""
        batches, queries = observation.batches, observation.queries
        by_rank = self.coins(observation).permutation(queries)
        rank = np.empty(queries, np.uint16 if queries <= 1 << 16 else np.int64)
        rank[by_rank] = np.arange(queries)  # of queries with equal SIC, the query of lower rank is first
        row_sic = batches.sic / np.maximum(batches.rows, 1e-9)
        # the bits of floats that are not negative sort as the floats do; the upper 44 tell ten digits
        falling = _order_of(_KEYS - (row_sic.view(np.uint64) >> np.uint64(_INDEX_BITS)))
        group = rank[batches.query]
        grouped = falling[np.argsort(group[falling], kind="stable")]
        counts = np.bincount(group, minlength=queries)
        levels = _levels(start[by_rank], batches.sic[grouped], counts)
        steps = np.rint(levels * _STEPS)
        order: IntArray = grouped[_order_of((steps - steps.min(initial=0.0)).astype(np.uint64))]
        return order


def _order_of(keys: npt.NDArray[np.uint64]) -> IntArray:
    """Returns what a stable argsort returns, six times as fast where key and index fit into one number."""
    if keys.size > 1 << _INDEX_BITS or keys.max(initial=np.uint64(0)) > _KEYS:
        return np.argsort(keys, kind="stable")
    packed = (keys << np.uint64(_INDEX_BITS)) | np.arange(keys.size, dtype=np.uint64)
    packed.sort()
    return (packed & np.uint64((1 << _INDEX_BITS) - 1)).astype(np.int64)


def _levels(start: FloatArray, sic: FloatArray, counts: IntArray) -> FloatArray:
    """By batch, the SIC of its query before the batch is kept; batches are grouped by query.

    The SIC is summed up query by query or, where there are fewer batches a query than queries, batch by batch
    for all queries at once. One running sum over all queries would round differently for queries with equal
    SIC.
    """
    ends = np.cumsum(counts)
    begins = ends - counts
    levels = np.empty(sic.size)
    some = counts > 0
    levels[begins[some]] = start[some]
    most = int(counts.max(initial=0))
    if most <= int(some.sum()):
        for k in range(1, most):
            at = begins[counts > k] + k
            levels[at] = levels[at - 1] + sic[at - 1]
        return levels
    for begin, end in zip(begins[some].tolist(), ends[some].tolist(), strict=True):
        steps = sic[begin:end].copy()
        steps[1:], steps[0] = sic[begin : end - 1], levels[begin]
        np.cumsum(steps, out=levels[begin:end])
    return levels


def _fill_up(keep: BoolArray, rest: IntArray, query: IntArray, load: FloatArray, left: float) -> None:
    """Keeps batches that still fit after the first that did not; a query stops at its first such batch."""
    if rest.size == 0 or left < float(load[rest].min()):
        return
    # A batch that does not fit now never will. It closes its query: only earlier batches can be kept.
    large = np.flatnonzero(load[rest] > left)
    closed_at = np.full(int(query.max()) + 1, rest.size)
    closed_at[query[rest[large[::-1]]]] = large[::-1]
    for place in np.flatnonzero(np.arange(rest.size) < closed_at[query[rest]]).tolist():
        batch = rest[place]
        if place < closed_at[query[batch]]:
            if load[batch] <= left:
                keep[batch] = True
                left -= load[batch]
            else:
                closed_at[query[batch]] = place
