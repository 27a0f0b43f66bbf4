"""The simulated plant: a data stream engine in virtual time behind the same seam as Spark.

`SimulatedPlant.observe()` runs the engine to the next control instant and reports an
`Observation`; `apply()` puts a `Decision` in force. Everything is deterministic for a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import InvalidInputError, MissingExtraError, require_positive
from penstock.model import (
    NO_ROWS,
    Decision,
    DelayStats,
    FloatArray,
    Grant,
    Observation,
    QueryClass,
    WaitingRows,
)
from penstock.policies.load.estimation import incoming_load, load_coefficients, queued_load
from penstock.sim.histogram import DelayHistogram
from penstock.sim.machine import Machine
from penstock.sim.network import Kind, Network

try:
    from penstock.sim import kernel
    from penstock.sim.state import initial_state
except ImportError as missing:  # pragma: no cover - exercised only without the extra
    raise MissingExtraError("the simulated plant", "numba", "sim") from missing

_WAITING_BINS = 128


@dataclass(frozen=True, slots=True)
class LabelTotals:
    """Delay violations of one group of outputs over a whole run."""

    completed: int
    delayed: int
    accumulated_s: float
    max_s: float

    @property
    def average_s(self) -> float:
        return self.accumulated_s / self.completed if self.completed else 0.0


class SimulatedPlant:
    """A stream engine in virtual time.

    Args:
        network: Operators, costs, queues.
        arrivals_s: Sorted arrival times, one array a source, in the order of `network.sources`.
        cls: The class that owns the network: name and delay target.
        period_s: Time between control instants.
        run_s: When the run ends.
        machine: Headroom and cost over time.
        targets: (from_s, delay_target_s) steps that change the target while running.
        grants: Whether rows wait at the entry until a decision grants them (managers that plan by
            the age of waiting rows), or are read freely and tossed a coin by the keep fraction.
        seed: Fixes selectivities and coins.
    """

    def __init__(
        self,
        network: Network,
        arrivals_s: Sequence[FloatArray],
        cls: QueryClass,
        period_s: float,
        run_s: float,
        machine: Machine | None = None,
        targets: Sequence[tuple[float, float]] = (),
        grants: bool = False,
        seed: int = 0,
    ) -> None:
        if len(arrivals_s) != len(network.sources):
            raise InvalidInputError(
                f"network {network.name} needs one arrival array a source ({len(network.sources)})",
                len(arrivals_s),
                "repeat the array for sources that share a pattern",
            )
        for times_s in arrivals_s:
            if times_s.size and not (
                times_s[0] >= 0 and np.isfinite(times_s[-1]) and (np.diff(times_s) >= 0).all()
            ):
                raise InvalidInputError(
                    "arrival times are sorted, finite and not negative",
                    f"{times_s[0]:g} to {times_s[-1]:g} s",
                    "sort them; penstock.sim.traces.read_trace does and says which line is wrong",
                )
        for _, target_s in targets:
            require_positive("delay target", target_s, "give it in seconds")
        require_positive("period", period_s, "a quarter of the delay target is a good start")
        require_positive("run length", run_s, "in seconds of virtual time")
        self.network, self.cls, self.period_s, self.run_s = network, cls, period_s, run_s
        self.grants = grants
        self._targets = sorted([(0.0, cls.delay_target_s), *targets])
        self._keep = 1.0
        self._cycle = 0
        self._state = initial_state(
            network,
            arrivals_s,
            machine or Machine(),
            self._targets[0][1],
            kernel.GRANTS if grants else kernel.KEEP_ON_READ,
            seed,
        )
        self._source_operators = np.array(network.sources)
        self._cost_s = np.array([op.cost_s + network.turn_cost_s for op in network.operators])
        self._selectivity = np.array(
            [0.0 if op.kind is Kind.JOIN else op.selectivity for op in network.operators]
        )
        self._coefficients = load_coefficients(self._cost_s, self._selectivity, network.downstream)
        self._measured_any = False
        self._seen = _Seen(np.array(self._first_row), 0, 0, 0)
        self._period_offered_rows = 0
        self.histogram = DelayHistogram()

    # -- the seam -------------------------------------------------------------------------------

    def observe(self) -> Observation | None:
        """Runs one period of virtual time and reports it; `None` once the run is over."""
        s = self._state
        started_s, busy_before = float(s.clock[kernel.CLOCK_NOW]), s.clock[kernel.CLOCK_BUSY]
        if started_s >= self.run_s - 1e-9:
            return None
        # turns are not cut short: the last one may have passed the next instant, or several
        instant = math.floor(started_s / self.period_s + 1e-9) + 1
        end_s = min(instant * self.period_s, self.run_s)
        self._clear_period()
        delays = self._advance(end_s)
        self._cycle += 1
        self._measure()
        now_s = float(s.clock[kernel.CLOCK_NOW])
        return self._observation(now_s, now_s - started_s, s.clock[kernel.CLOCK_BUSY] - busy_before, delays)

    def apply(self, decision: Decision) -> None:
        """Puts a decision in force from now on."""
        s = self._state
        keep = decision.keep_fraction
        if decision.grant is not None:
            self._grant(decision.grant)
        if decision.shed_load_s > 0.0:
            keep = min(keep, self._shed_inside(decision.shed_load_s))
        self._keep = keep
        s.clock[kernel.CLOCK_KEEP] = keep

    # -- totals, for results and tests ----------------------------------------------------------

    @property
    def offered_rows(self) -> int:
        return sum(int(a - b) for a, b in zip(self._arrived(), self._first_row, strict=True))

    @property
    def admitted_rows(self) -> int:
        return int(self._state.admitted.sum())

    @property
    def shed_rows(self) -> int:
        return int(self._state.shed.sum())

    @property
    def waiting_rows(self) -> int:
        return int(self._waiting_per_source(np.array(self._arrived())).sum())

    def totals(self) -> dict[str, LabelTotals]:
        """Violations by output label, over the run so far."""
        s = self._state
        return {
            label: LabelTotals(
                int(s.label_count[i]),
                int(s.label_violations[i]),
                float(s.label_violation_s[i]),
                float(s.label_violation_max_s[i]),
            )
            for i, label in enumerate(self.network.labels)
        }

    # -- inside ---------------------------------------------------------------------------------

    @property
    def _first_row(self) -> FloatArray:
        return np.concatenate(([0], self._state.end_row[:-1])).astype(np.int64)

    def _arrived(self, by_s: float | None = None) -> list[int]:
        """For each source the index after its last row that has arrived by a moment (now)."""
        s, first = self._state, self._first_row
        by_s = s.clock[kernel.CLOCK_NOW] if by_s is None else by_s
        return [
            int(start + np.searchsorted(s.arrival_s[start:end], by_s, side="right"))
            for start, end in zip(first.tolist(), s.end_row.tolist(), strict=True)
        ]

    def _advance(self, end_s: float) -> FloatArray:
        s = self._state
        s.clock[kernel.CLOCK_TARGET] = self._target_at(s.clock[kernel.CLOCK_NOW])
        chunks = []
        done = False
        while not done:
            done = kernel.run(s, end_s)
            chunks.append(s.delays_s[: s.counts[kernel.COUNT_DELAYS]].copy())
            s.counts[kernel.COUNT_DELAYS] = 0
        delays = np.concatenate(chunks)
        self.histogram.add(delays)
        return delays

    def _target_at(self, now_s: float) -> float:
        return next(target for from_s, target in reversed(self._targets) if from_s <= now_s + 1e-9)

    def _clear_period(self) -> None:
        s = self._state
        for counter in (s.work_s, s.rows_in, s.rows_out, s.output_sum_s, s.output_count):
            counter[:] = 0

    def _measure(self) -> None:
        """Refreshes measured cost and selectivity of the operators that ran in the period."""
        s = self._state
        ran = s.rows_in > 0
        self._measured_any = self._measured_any or bool(ran[self._source_operators].any())
        self._cost_s = np.where(ran, s.work_s / np.maximum(s.rows_in, 1), self._cost_s)
        self._selectivity = np.where(ran, s.rows_out / np.maximum(s.rows_in, 1), self._selectivity)
        self._coefficients = load_coefficients(self._cost_s, self._selectivity, self.network.downstream)

    def _observation(self, now_s: float, period_s: float, busy_s: float, delays: FloatArray) -> Observation:
        s, seen = self._state, self._seen
        # what the last decision admitted or shed at once counts in the period it governed: compare with the
        # counts at the end of the previous observation, not with those after the decision
        now = _Seen(
            np.array(self._arrived()),
            self.admitted_rows,
            self.shed_rows,
            int(s.counts[kernel.COUNT_DEPARTED]),
        )
        self._seen = now
        offered = now.arrived - seen.arrived
        self._period_offered_rows = int(offered.sum())
        coefficients = self._coefficients[self._source_operators]
        waiting = self._waiting_per_source(now.arrived)
        network_load_s = queued_load(s.length, self._coefficients[s.port_operator])
        entry_load_s = queued_load(waiting * self._keep, coefficients)
        cost = None
        if self._measured_any:
            weight = offered if offered.sum() > 0 else np.ones_like(offered)
            cost = float(weight @ coefficients / weight.sum())
        has_rows = s.output_count > 0
        return Observation(
            id=self._cycle,
            cls=self.cls.name,
            now_s=now_s,
            period_s=period_s,
            delay_target_s=self._target_at(now_s),
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
            work_s=float(s.work_s.sum()),
            busy_s=float(busy_s),
            delay=DelayStats.of(delays),
            output_delay_s=np.where(has_rows, s.output_sum_s / np.maximum(s.output_count, 1), np.nan),
            waiting=self._waiting_profile(now.arrived) if self.grants else NO_ROWS,
        )

    def _waiting_per_source(self, arrived: FloatArray) -> FloatArray:
        s = self._state
        dropped = [int(s.row_shed[s.next_row[i] : end].sum()) for i, end in enumerate(arrived)]
        return arrived - s.next_row - np.array(dropped)

    def _waiting_profile(self, arrived: FloatArray) -> WaitingRows:
        """How many rows wait by arrival time, in bins of equal width over the waiting rows' age."""
        s = self._state
        times_s = np.concatenate([s.arrival_s[s.next_row[i] : end] for i, end in enumerate(arrived)])
        if times_s.size == 0:
            return NO_ROWS
        first_s, last_s = times_s.min(), times_s.max()
        width_s = max((last_s - first_s) / (_WAITING_BINS - 1), 1e-9)
        index = np.minimum(np.ceil((times_s - first_s) / width_s).astype(np.int64), _WAITING_BINS - 1)
        rows = np.bincount(index, minlength=_WAITING_BINS).astype(float)
        edges = first_s + width_s * np.arange(_WAITING_BINS)
        edges[-1] = max(edges[-1], last_s)
        return WaitingRows(edges, rows)

    def _grant(self, grant: Grant) -> None:
        """Lets rows in source by source; a limit is shared in proportion to what each has up to the cut."""
        s = self._state
        cut_s = min(grant.cut_s, float(s.clock[kernel.CLOCK_NOW]))
        until = np.array(self._arrived(cut_s))
        in_time = np.array(self._arrived(np.nextafter(grant.shed_before_s, -np.inf)))
        eligible = np.maximum(until - np.maximum(s.next_row, in_time), 0)
        limits = np.full(until.size, np.inf)
        if grant.limit_rows is not None and eligible.sum() > 0:
            limits = self._shares(eligible * (grant.limit_rows / eligible.sum()))
        for i, operator in enumerate(self.network.sources):
            kernel.grant(s, i, operator, until[i], grant.shed_before_s, grant.keep_fraction, limits[i])

    def _shares(self, wanted: FloatArray) -> FloatArray:
        """Whole rows that add up to the total; the remainder goes round, so that no source stays short."""
        whole = np.floor(wanted)
        left = round(float(wanted.sum() - whole.sum()))
        order = (np.arange(wanted.size) + self._cycle) % wanted.size
        whole[order[:left]] += 1
        return whole

    def _shed_inside(self, load_s: float) -> float:
        """Drops queued load; returns the entry keep fraction that sheds the rest over the next period."""
        if not self.network.is_tree_of_rows:
            raise InvalidInputError(
                "in-network shedding needs a network in which every tuple is one source row",
                f"network {self.network.name} with shared operators or joins",
                "use entry shedding: shedding='entry'",
            )
        left_s = kernel.shed_inside(self._state, self._coefficients, load_s)
        expected_s = self._period_offered_rows * float(self._coefficients[self._source_operators].mean())
        return 1.0 if expected_s <= 0 else max(0.0, 1.0 - left_s / expected_s)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Cumulative counts at the end of the previous observation."""

    arrived: FloatArray
    admitted: int
    shed: int
    departed: int
