"""A class's view of the engine: its operators, its entries, its part of the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.policies.load.estimation import incoming_load, load_coefficients, queued_load
from penstock.sim.engine import kernel
from penstock.sim.engine.histogram import DelayHistogram
from penstock.sim.workloads.network import Kind
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import (
    NO_ROWS,
    Admission,
    Decision,
    DelayStats,
    FloatArray,
    Observation,
    QueryClass,
    WaitingRows,
)

if TYPE_CHECKING:
    from penstock.sim.engine.plant import Engine

_WAITING_BINS = 128


class ClassView:
    """A class of the engine as a virtual system: the plant that its load manager controls.

    `observe` reports the last period that the engine ran; whoever advances the engine asks every class.
    """

    def __init__(self, engine: Engine, cls: QueryClass, number: int) -> None:
        self.cls = cls
        self.capacity_scale = 1.0
        """A redistribution sets it, and the next observation gives it to the manager."""
        self.histogram = DelayHistogram()
        self._engine, self._number = engine, number
        s, network = engine.state, engine.network
        self._grants = bool(s.class_mode[number] == kernel.GRANTS)
        self._operators = np.flatnonzero(s.class_of == number)
        self._entries = np.array([e for e, o in enumerate(network.entries) if s.class_of[o] == number], int)
        self._sources = self._entries[self._entries < len(network.sources)]
        self._inner = self._entries[self._entries >= len(network.sources)]
        if self._grants and self._inner.size:
            raise InvalidInputError(
                f"class {cls.name}: a manager that gives grants reads from sources alone",
                f"operator {network.operators[network.entries[self._inner[0]]].name} of another class",
                "choose a manager with a keep fraction: aloma or seamless",
            )
        self._entry_operators = np.array(network.entries)[self._entries]
        self._ports = np.flatnonzero(np.isin(s.port_operator, self._operators))
        self._entry_ports = s.first_port[np.array(network.entries)[self._inner]]
        self._is_entry_port = np.isin(self._ports, self._entry_ports)
        self._outputs = np.unique(s.output_of[self._operators][s.output_of[self._operators] >= 0])
        self._targets = [(0.0, cls.delay_target_s)]
        self._keep = 1.0
        self._cycle = 0
        self._cost_s = np.array([op.cost_s + network.turn_cost_s for op in network.operators])
        self._selectivity = np.array(
            [0.0 if op.kind is Kind.JOIN else op.selectivity for op in network.operators]
        )
        self._full_batch_cost_s = self._cost_s
        self._coefficients = self._coefficients_of(self._cost_s)
        self._measured_any = False
        self._seen = _Seen(self._arrived_at_entries(engine.first_row), 0, 0, 0)
        self._period_offered_rows = 0
        self._period_offered, self._period_s = np.zeros(len(self._entries)), 1.0
        self._period = _Period(0.0, 0.0, [])

    # -- the seam -------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """The period that the engine ran last."""
        s, seen, period = self._engine.state, self._seen, self._period
        scale, self.capacity_scale = self.capacity_scale, 1.0
        now_s = self._engine.now_s
        period_s = now_s - period.from_s
        # rows that the last decision admitted or shed at once count in the period it governed: compare with
        # the counts at the end of the previous observation, not with the counts after the decision
        arrived = np.array(self._engine.arrived(now_s))
        now = _Seen(
            self._arrived_at_entries(arrived),
            self.admitted_rows,
            self.shed_rows,
            int(s.class_departed[self._number]),
        )
        self._seen = now
        offered = now.came - seen.came
        self._period_offered_rows = int(offered.sum())
        self._period_offered, self._period_s = offered, period_s
        coefficients = self._coefficients[self._entry_operators]
        waiting = self._waiting(arrived)
        inside = s.length[self._ports].copy()
        inside[self._is_entry_port] = 0  # not decided yet
        network_load_s = queued_load(inside, self._coefficients[s.port_operator[self._ports]])
        entry_load_s = queued_load(waiting * self._keep, coefficients)
        cost = None
        if self._measured_any:
            weight = offered if offered.sum() > 0 else np.ones_like(offered)
            cost = float(weight @ coefficients / weight.sum())
        count, total_s = s.output_count[self._outputs], s.output_sum_s[self._outputs]
        return Observation(
            id=self._cycle,
            cls=self.cls.name,
            now_s=now_s,
            period_s=period_s,
            delay_target_s=self.target_at(now_s),
            keep_fraction=self._keep,
            offered_rows=self._period_offered_rows,
            admitted_rows=now.admitted - seen.admitted,
            shed_rows=now.shed - seen.shed,
            departed_rows=now.departed - seen.departed,
            waiting_rows=int(waiting.sum()),
            offered_load=incoming_load(offered / period_s, coefficients),
            queued_load_s=network_load_s + entry_load_s,
            network_load_s=network_load_s,
            cost_per_row_s=cost,
            work_s=float(s.work_s[self._operators].sum()),
            busy_s=period_s - (self._dry_s() - period.dry_s),
            delay=DelayStats.of(self.period_delays_s),
            output_delay_s=np.where(count > 0, total_s / np.maximum(count, 1), np.nan),
            waiting=self._waiting_profile(arrived) if self._grants else NO_ROWS,
            capacity_scale=scale,
        )

    def apply(self, decision: Decision) -> None:
        """Puts a decision in force from now on."""
        keep = decision.keep_fraction
        if decision.grant is not None:
            self._grant(decision.grant)
        if decision.shed_load_s > 0.0:
            keep = min(keep, self._shed_inside(decision.shed_load_s))
        self._keep = keep
        self._engine.state.keep[self._entries] = keep

    # -- called by the engine -------------------------------------------------------------------

    def begin_period(self) -> None:
        self._period = _Period(self._engine.now_s, self._dry_s(), [])

    def add_delays(self, delays_s: FloatArray) -> None:
        self._period.delays_s.append(delays_s.copy())
        self.histogram.add(delays_s)

    @property
    def period_delays_s(self) -> FloatArray:
        """Delays of the rows completed in the last period."""
        return np.concatenate(self._period.delays_s)

    def end_period(self) -> None:
        """Refreshes measured cost and selectivity of the operators that ran in the period."""
        s = self._engine.state
        self._cycle += 1
        ran = s.rows_in > 0
        self._measured_any = self._measured_any or bool(ran[self._entry_operators].any())
        self._cost_s = np.where(ran, s.work_s / np.maximum(s.rows_in, 1), self._cost_s)
        self._selectivity = np.where(ran, s.rows_out / np.maximum(s.rows_in, 1), self._selectivity)
        self._coefficients = self._coefficients_of(self._cost_s)
        self._full_batch_cost_s = np.maximum(0.0, self._cost_s - self._saved_s())

    def set_targets(self, targets: Sequence[tuple[float, float]]) -> None:
        """Sets (from_s, delay_target_s) steps that change the target while running."""
        self._targets = sorted([(0.0, self.cls.delay_target_s), *targets])

    def target_at(self, now_s: float) -> float:
        return next(target for from_s, target in reversed(self._targets) if from_s <= now_s + 1e-9)

    # -- totals, for results and tests ----------------------------------------------------------

    @property
    def offered_rows(self) -> int:
        reached = self._arrived_at_entries(np.array(self._engine.arrived(self._engine.now_s)))
        return int((reached - self._arrived_at_entries(self._engine.first_row, from_inside=False)).sum())

    @property
    def admitted_rows(self) -> int:
        return int(self._engine.state.admitted[self._entries].sum())

    @property
    def shed_rows(self) -> int:
        return int(self._engine.state.shed[self._entries].sum())

    @property
    def waiting_rows(self) -> int:
        return int(self._waiting(np.array(self._engine.arrived(self._engine.now_s))).sum())

    # -- inside ---------------------------------------------------------------------------------

    def _coefficients_of(self, cost_s: FloatArray) -> FloatArray:
        downstream = self._engine.network.downstream_in_class
        return load_coefficients(cost_s, self._selectivity, downstream)

    def _saved_s(self) -> FloatArray:
        """How much of each operator's cost a row full batches would save, by the batches it had."""
        s, network = self._engine.state, self._engine.network
        beyond = s.batches / np.maximum(s.rows_in, 1) - 1.0 / network.batch_rows
        return np.where(s.rows_in > 0, network.turn_cost_s * np.maximum(0.0, beyond), 0.0)

    @property
    def full_batch_load(self) -> float:
        """The load that the last period would have offered with full batches."""
        coefficients = self._coefficients_of(self._full_batch_cost_s)[self._entry_operators]
        return incoming_load(self._period_offered / self._period_s, coefficients)

    def _dry_s(self) -> float:
        """Seconds so far in which the class had nothing to do."""
        s, k = self._engine.state, self._number
        since_s = s.class_dry_from_s[k]
        return float(s.class_dry_s[k] + (self._engine.now_s - since_s if since_s >= 0.0 else 0.0))

    def _arrived_at_entries(self, arrived: FloatArray, from_inside: bool = True) -> FloatArray:
        """For each entry, how many rows have come to it; a source counts from its very first row."""
        s = self._engine.state
        inner = s.admitted[self._inner] + s.shed[self._inner] + s.length[self._entry_ports]
        return np.concatenate((arrived[self._sources], inner if from_inside else 0 * inner))

    def _waiting(self, arrived: FloatArray) -> FloatArray:
        """For each entry, how many rows wait undecided."""
        s = self._engine.state
        ends, starts = arrived[self._sources], s.next_row[self._sources]
        dropped = [int(s.row_shed[a:b].sum()) for a, b in zip(starts, ends, strict=True)]
        return np.concatenate((ends - starts - np.array(dropped, int), s.length[self._entry_ports]))

    def _waiting_profile(self, arrived: FloatArray) -> WaitingRows:
        """How many rows wait by arrival time, in bins of equal width over the waiting rows' age."""
        s = self._engine.state
        times_s = np.concatenate([s.arrival_s[s.next_row[i] : arrived[i]] for i in self._sources])
        if times_s.size == 0:
            return NO_ROWS
        first_s, last_s = times_s.min(), times_s.max()
        width_s = max((last_s - first_s) / (_WAITING_BINS - 1), 1e-9)
        index = np.minimum(np.ceil((times_s - first_s) / width_s).astype(np.int64), _WAITING_BINS - 1)
        rows = np.bincount(index, minlength=_WAITING_BINS).astype(float)
        edges = first_s + width_s * np.arange(_WAITING_BINS)
        edges[-1] = max(edges[-1], last_s)
        return WaitingRows(edges, rows)

    def _grant(self, grant: Admission) -> None:
        """Lets rows in, source by source; a limit is divided in proportion to the rows up to the cut."""
        s, engine = self._engine.state, self._engine
        mine = self._sources
        until = np.array(engine.arrived(min(grant.cut_s, engine.now_s)))[mine]
        in_time = np.array(engine.arrived(np.nextafter(grant.shed_before_s, -np.inf)))[mine]
        eligible = np.maximum(until - np.maximum(s.next_row[mine], in_time), 0)
        limits = np.full(until.size, np.inf)
        if grant.limit_rows is not None and eligible.sum() > 0:
            limits = self._shares(eligible * (grant.limit_rows / eligible.sum()))
        for i, source in enumerate(mine):
            operator = engine.network.sources[source]
            kernel.grant(s, source, operator, until[i], grant.shed_before_s, grant.keep_fraction, limits[i])

    def _shares(self, wanted: FloatArray) -> FloatArray:
        """Rounds to whole rows with the same total; the remainder rotates, so that no source stays short."""
        whole = np.floor(wanted)
        left = round(float(wanted.sum() - whole.sum()))
        order = (np.arange(wanted.size) + self._cycle) % wanted.size
        whole[order[:left]] += 1
        return whole

    def _shed_inside(self, load_s: float) -> float:
        """Drops queued load; returns the entry keep fraction that sheds what is left over the next period."""
        network = self._engine.network
        if not network.is_tree_of_rows or len(self._engine.views) > 1:
            raise InvalidInputError(
                "in-network shedding needs a network of one class in which every tuple is one source row",
                f"network {network.name} with shared operators, joins or classes",
                "use entry shedding: shedding='entry'",
            )
        left_s = kernel.shed_inside(self._engine.state, self._coefficients, load_s)
        expected_s = self._period_offered_rows * float(self._coefficients[self._entry_operators].mean())
        return 1.0 if expected_s <= 0 else max(0.0, 1.0 - left_s / expected_s)


@dataclass(frozen=True, slots=True)
class _Period:
    """The current period: when it began, dry seconds before it, and delays of rows completed in it."""

    from_s: float
    dry_s: float
    delays_s: list[FloatArray]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Cumulative counts at the end of the previous observation."""

    came: FloatArray
    admitted: int
    shed: int
    departed: int
