"""A federation in virtual time: nodes that shed on their own, joined by fragments and coordinators.

Time advances by shedding intervals. At the end of an interval, a node's input buffer has batches of sources
and of upstream fragments that came in, and batches that the node kept before but did not process. The node's
shedder, the same object that governs Spark, keeps as much as the node can process until the next interval, by
the cost model; other batches are dropped. Kept batches are processed in order of arrival. At the end of each
of its windows, a fragment emits one batch to the next fragment or to the user. The batch has the SIC of
everything that the fragment processed since its last window. A batch is a row of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.policies.quality.sic import IntArray, SourceTimeWindow, source_tuple_sic
from penstock.policies.shedding import Shedder, ShedObservation, TupleCost, WaitingBatches
from penstock.sim.federation.coordinators import Coordinators, Notice
from penstock.sim.federation.layout import TO_USER, Layout
from penstock.sim.federation.outages import Outage, Outages
from penstock.sim.federation.sources import Bursts, Sources
from penstock.vocabulary.errors import InvalidInputError, require_fraction, require_positive
from penstock.vocabulary.model import FloatArray

_JUST = 1e-6
"""Tolerance: an event at the end of an interval belongs to the interval's last slide, not to the next."""


@dataclass(frozen=True, slots=True)
class FederationConfig:
    """How a federation runs; the defaults are kalyvianaki2016's Emulab test-bed.

    Attributes:
        capacity_rows_per_s: Rows of cost one that a node processes a second; one value, or one for each node.
        interval_s: Shedding interval.
        update_s: Time between a coordinator's reports.
        stw_s: Source time window.
        window_s: Window of the fragments.
        delay_s: Network delay between nodes, and to the coordinators.
        updates: Whether coordinators report at all (updateSIC).
        count_admitted: Whether a node adds to a report the SIC that it has admitted since the report.
        drop_cost_fraction: Cost of dropping a row, as a fraction of the cost of processing a row.
        bursts: Bursts of the sources.
    """

    capacity_rows_per_s: float | tuple[float, ...]
    interval_s: float = 0.25
    update_s: float = 0.25
    stw_s: float = 10.0
    window_s: float = 1.0
    delay_s: float = 0.005
    updates: bool = True
    count_admitted: bool = True
    drop_cost_fraction: float = 0.0
    bursts: Bursts | None = None

    def __post_init__(self) -> None:
        for name in ("interval_s", "update_s", "stw_s", "window_s"):
            require_positive(name, getattr(self, name), "in seconds")
        for rate in np.atleast_1d(self.capacity_rows_per_s):
            require_positive("capacity_rows_per_s", float(rate), "rows a second of one node")
        if self.interval_s > self.window_s:
            raise InvalidInputError(
                "a shedding interval is no longer than a window",
                self.interval_s,
                f"at most {self.window_s} s",
            )
        require_fraction("drop_cost_fraction", self.drop_cost_fraction, "0 if dropping is free")
        if self.delay_s < 0:
            raise InvalidInputError("a delay is 0 or more", self.delay_s, "0.005 on a LAN, 0.05 on a WAN")


@dataclass(slots=True, eq=False)
class _Batches:
    """Batches in a buffer or on their way."""

    fragment: IntArray
    rows: IntArray
    sic: FloatArray
    arrival_s: FloatArray
    done_s: FloatArray
    """CPU seconds that were already spent on each batch."""

    @classmethod
    def of(cls, fragment: IntArray, rows: IntArray, sic: FloatArray, arrival_s: FloatArray) -> _Batches:
        return cls(fragment, rows, sic, arrival_s, np.zeros(fragment.size))

    @classmethod
    def none(cls) -> _Batches:
        return cls.of(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))

    def where(self, mask: np.ndarray) -> _Batches:
        return _Batches(*(getattr(self, field)[mask] for field in _FIELDS))

    @classmethod
    def joined(cls, parts: Sequence[_Batches]) -> _Batches:
        return cls(*(np.concatenate([getattr(part, field) for part in parts]) for field in _FIELDS))


_FIELDS = ("fragment", "rows", "sic", "arrival_s", "done_s")


@dataclass(frozen=True, slots=True, eq=False)
class FederationResult:
    """Result of a run.

    Attributes:
        now_s: Moments of the coordinators' reports.
        sic: Each query's SIC at these moments, a row a moment.
        processed_rows: Rows of sources and fragments that each node processed.
        shed_rows: Rows that each node shed.
        offered_rows: Rows that reached each node.
        lost_rows: Rows lost with each node's failures.
        waiting_rows: Rows that each node still holds.
        notices: Lost and returned nodes that coordinators noticed.
    """

    now_s: FloatArray
    sic: FloatArray
    processed_rows: IntArray
    shed_rows: IntArray
    offered_rows: IntArray
    lost_rows: IntArray
    waiting_rows: IntArray
    notices: tuple[Notice, ...]

    def after(self, from_s: float) -> FloatArray:
        """SIC by moment and query, from a moment on."""
        return self.sic[self.now_s >= from_s]


class Federation:
    """Runs queries on nodes until a moment.

    Args:
        layout: The queries, and the nodes of their fragments.
        config: Settings of the federation.
        shedder: Builds a node's shedder from a seed.
        seed: Seed of sources, window phases and shedders.
        outages: Nodes and links that fail and return.
    """

    def __init__(
        self,
        layout: Layout,
        config: FederationConfig,
        shedder: Callable[[int], Shedder],
        seed: int = 0,
        outages: Sequence[Outage] = (),
    ) -> None:
        self.layout, self.config = layout, config
        self._row_s = 1.0 / np.broadcast_to(np.asarray(config.capacity_rows_per_s, float), layout.nodes)
        self._shedders = [shedder(seed * 1009 + node) for node in range(layout.nodes)]
        self._costs = [TupleCost() for _ in range(layout.nodes)]
        self._sources = Sources(layout, seed, config.bursts)
        self._windows = SourceTimeWindow(layout.source_fragment.size, config.stw_s, config.update_s)
        self._coordinators = Coordinators(layout, config.stw_s, config.update_s)
        self._outages = Outages(outages, layout.nodes)
        self._down = np.zeros(layout.nodes, np.bool_)
        rng = np.random.default_rng((seed, 4))
        self._emit_s = rng.random(layout.fragments) * config.window_s
        self._held_sic = np.zeros(layout.fragments)
        self._dropping_s = np.zeros(layout.nodes)
        self._buffer = _Batches.none()
        self._on_way = _Batches.none()
        self._results = _Batches.none()
        self._source_sic = 1.0 / layout.sources_of_query[layout.query[layout.source_fragment]]
        self._admitted = _Admitted(layout, config)
        self._tick = 0
        self.offered, self.processed, self.shed, self.lost = (
            np.zeros(layout.nodes, np.int64) for _ in range(4)
        )

    @property
    def known_sic(self) -> FloatArray:
        """Each node's knowledge of each query's SIC; NaN if it knows nothing."""
        return self._coordinators.reported

    def run(self, run_s: float) -> FederationResult:
        """Runs from the start for `run_s` seconds."""
        times, values = [], []
        next_report_s = self.config.update_s
        while (now_s := (self._tick + 1) * self.config.interval_s) <= run_s + 1e-9:
            self._step(self._tick * self.config.interval_s, now_s)
            self._tick += 1
            if now_s + 1e-9 >= next_report_s:
                sic = self._coordinators.sic(now_s - _JUST, self._windows)
                reach = self._outages.reach_coordinators(now_s)
                if self.config.updates:
                    self._coordinators.report(now_s, sic, reach)
                times.append(now_s)
                values.append(sic)
                next_report_s += self.config.update_s * max(
                    1.0, self.config.interval_s / self.config.update_s
                )
        node = self.layout.node[self._buffer.fragment]
        return FederationResult(
            np.array(times),
            np.array(values).reshape(len(times), self.layout.queries),
            self.processed,
            self.shed,
            self.offered,
            self.lost,
            np.bincount(node, weights=self._buffer.rows, minlength=self.layout.nodes).astype(np.int64),
            tuple(self._coordinators.notices),
        )

    def _step(self, from_s: float, now_s: float) -> None:
        """One interval: process kept batches, receive batches that arrive, shed at the end."""
        self._fail(now_s)
        self._process(from_s, now_s)
        self._receive(from_s, now_s)
        self._shed(now_s)

    def _fail(self, now_s: float) -> None:
        down = ~self._outages.up(now_s)
        failed = down & ~self._down
        self._down = down
        if failed.any():
            hit = failed[self.layout.node]
            self._held_sic[hit] = 0.0
            lost = hit[self._buffer.fragment]
            self._count(self.lost, self._buffer.where(lost))
            self._buffer = self._buffer.where(~lost)
            self._coordinators.forget(failed)
            for node in np.flatnonzero(failed).tolist():
                self._costs[node] = TupleCost()

    def _process(self, from_s: float, now_s: float) -> None:
        """Processes the buffers in order of arrival; batches that are not finished stay."""
        batches, layout = self._buffer, self.layout
        node = layout.node[batches.fragment]
        load_s = batches.rows * layout.cost[batches.fragment] * self._row_s[node] - batches.done_s
        # buffers are sorted by node and arrival: the sum up to a batch less the sum before its node's first
        upto_s = np.cumsum(load_s)
        first = np.searchsorted(node, np.arange(layout.nodes))
        end_s = (from_s + self._dropping_s - np.concatenate([[0.0], upto_s])[first])[node] + upto_s
        done = end_s <= now_s + 1e-12
        finished = batches.where(done)
        self._count(self.processed, finished)
        self._admitted.add(finished.fragment, finished.sic)
        spent_s = np.where(done, load_s, np.maximum(0.0, load_s - np.maximum(0.0, end_s - now_s)))
        rows = np.bincount(node[done], weights=finished.rows, minlength=layout.nodes)
        busy_s = np.bincount(node, weights=spent_s, minlength=layout.nodes) + self._dropping_s
        for i in range(layout.nodes):
            self._costs[i].measure(float(rows[i]), float(busy_s[i]))
        batches.done_s += spent_s
        self._buffer = batches.where(~done)
        self._emit(finished, end_s[done], now_s)

    def _emit(self, finished: _Batches, done_s: FloatArray, now_s: float) -> None:
        """Fragments whose window ends emit one batch for what they processed since the last window."""
        layout, config = self.layout, self.config
        emits = (self._emit_s <= now_s + 1e-12) & ~self._down[layout.node]
        in_time = done_s <= self._emit_s[finished.fragment]
        late = ~(in_time & emits[finished.fragment])
        size = layout.fragments
        self._held_sic += np.bincount(finished.fragment[~late], weights=finished.sic[~late], minlength=size)
        some = np.flatnonzero(emits & (self._held_sic > 0))
        out = _Batches.of(
            some, layout.output_rows[some], self._held_sic[some], self._emit_s[some] + config.delay_s
        )
        self._held_sic[emits] = 0.0
        self._held_sic += np.bincount(finished.fragment[late], weights=finished.sic[late], minlength=size)
        self._emit_s[self._emit_s <= now_s + 1e-12] += config.window_s
        target = layout.downstream[some]
        to_user = target == TO_USER
        self._results = _Batches.joined([self._results, out.where(to_user)])
        onward = out.where(~to_user)
        onward.fragment = target[~to_user]
        linked = self._outages.linked(now_s, layout.node[some[~to_user]], layout.node[onward.fragment])
        self._on_way = _Batches.joined([self._on_way, onward.where(linked)])

    def _receive(self, from_s: float, now_s: float) -> None:
        """Batches of sources and fragments reach their nodes; results reach their coordinators."""
        layout = self.layout
        sent = self._sources.send(from_s, now_s)
        self._windows.offer(now_s - _JUST, sent.source, sent.rows.astype(float))
        rows_in_window = self._windows.window_rows(now_s - _JUST)[sent.source]
        sic = sent.rows * source_tuple_sic(rows_in_window, 1.0) * self._source_sic[sent.source]
        fragment = layout.source_fragment[sent.source]
        self._coordinators.offered(now_s - _JUST, layout.query[fragment], sic)
        there = self._on_way.arrival_s <= now_s
        arrived = _Batches.joined(
            [_Batches.of(fragment, sent.rows, sic, sent.sent_s), self._on_way.where(there)]
        )
        self._on_way = self._on_way.where(~there)
        self._count(self.offered, arrived)
        lost = self._down[layout.node[arrived.fragment]]
        self._count(self.lost, arrived.where(lost))
        self._buffer = _sorted(_Batches.joined([self._buffer, arrived.where(~lost)]), layout)
        done = self._results.arrival_s <= now_s
        shown = self._results.where(
            done & self._outages.reach_coordinators(now_s)[layout.node[self._results.fragment]]
        )
        self._coordinators.results(now_s - _JUST, layout.query[shown.fragment], shown.sic)
        self._results = self._results.where(~done)

    def _shed(self, now_s: float) -> None:
        """Every node decides by itself what it sheds."""
        layout, batches = self.layout, self._buffer
        query = layout.query[batches.fragment]
        bounds = np.searchsorted(layout.node[batches.fragment], np.arange(layout.nodes + 1))
        admitted_sic = self._admitted.by_node()
        keep = np.ones(query.size, np.bool_)
        for node in range(layout.nodes):
            first, end = int(bounds[node]), int(bounds[node + 1])
            capacity = self._costs[node].keep_rows(self.config.interval_s)
            if first < end and batches.done_s[first] > 0:
                first += 1  # this batch is being processed, so it is no longer in the buffer
            if capacity is None or first == end:
                continue  # the node has processed nothing, so no cost is known: everything waits
            part = slice(first, end)
            # one batch more than fits the interval, or the node would run dry before the next one
            capacity += float(batches.rows[part].max())
            seen = ShedObservation(
                self._tick,
                now_s,
                WaitingBatches(
                    query[part],
                    batches.rows[part],
                    batches.sic[part],
                    batches.arrival_s[part],
                    batches.arrival_s[part],
                ),
                self._coordinators.reported[node],
                admitted_sic[node],
                capacity,
            )
            keep[part] = self._shedders[node].decide(seen).keep
        self._drop(batches.where(~keep))
        self._buffer = batches.where(keep)

    def _drop(self, batches: _Batches) -> None:
        """Charges the cost of dropping to the node's next interval, if dropping is not free."""
        self._count(self.shed, batches)
        node = self.layout.node[batches.fragment]
        cost = batches.rows * self.layout.cost[batches.fragment]
        rows = np.bincount(node, weights=cost, minlength=self.layout.nodes)
        dropping_s = rows * self._row_s * self.config.drop_cost_fraction
        self._dropping_s = np.minimum(dropping_s, self.config.interval_s)

    def _count(self, total: IntArray, batches: _Batches) -> None:
        node = self.layout.node[batches.fragment]
        total += np.bincount(node, weights=batches.rows, minlength=self.layout.nodes).astype(np.int64)


class _Admitted:
    """SIC that nodes have processed but that cannot be in the last report yet.

    On its way to the user, a batch waits half a window in each fragment, on average, and the network's delay
    and an interval between two fragments. The report that a node has is an interval old.
    """

    def __init__(self, layout: Layout, config: FederationConfig) -> None:
        self._layout, self._on = layout, config.count_admitted
        way_s = (layout.hops + 1) * (config.window_s / 2 + config.delay_s) + layout.hops * config.interval_s
        intervals = np.rint(way_s / config.interval_s).astype(np.int64) + 1
        self._ring = np.zeros((int(intervals.max()), layout.fragments))
        self._counts = np.arange(self._ring.shape[0])[:, None] < intervals
        self._place = layout.node * layout.queries + layout.query

    def add(self, fragment: IntArray, sic: FloatArray) -> None:
        """Adds SIC that was processed in the interval that ends."""
        if self._on:
            self._ring[1:] = self._ring[:-1]
            self._ring[0] = np.bincount(fragment, weights=sic, minlength=self._layout.fragments)

    def by_node(self) -> FloatArray:
        """The SIC by node and query."""
        nodes, queries = self._layout.nodes, self._layout.queries
        total = (self._ring * self._counts).sum(axis=0)
        sums = np.bincount(self._place, weights=total, minlength=nodes * queries)
        return sums.reshape(nodes, queries).astype(np.float64)


def _sorted(batches: _Batches, layout: Layout) -> _Batches:
    """Batches sorted by node, then by arrival."""
    by_arrival = np.argsort(batches.arrival_s, kind="stable")
    small = np.uint16 if layout.nodes <= 1 << 16 else np.int64  # numpy has a radix sort for 16 bits
    node = layout.node[batches.fragment[by_arrival]].astype(small)
    return batches.where(by_arrival[np.argsort(node, kind="stable")])
