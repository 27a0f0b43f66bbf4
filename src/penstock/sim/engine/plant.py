"""The simulated engine in virtual time, and the plant of a single class on it.

`SimulatedPlant.observe()` runs the engine to the next control instant and reports an
`Observation`; `apply()` puts a `Decision` in force. Everything is deterministic for a seed.
`penstock.sim.classes` has the plant of several classes that share the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.sim.engine.histogram import DelayHistogram
from penstock.sim.engine.machine import Machine
from penstock.sim.workloads.network import Network
from penstock.vocabulary.errors import (
    InvalidInputError,
    MissingExtraError,
    UnknownNameError,
    require_positive,
)
from penstock.vocabulary.model import Decision, FloatArray, Observation, QueryClass

try:
    from penstock.sim.engine import kernel
    from penstock.sim.engine.state import initial_state
    from penstock.sim.engine.view import ClassView
except ImportError as missing:  # pragma: no cover - exercised only without the extra
    raise MissingExtraError("the simulated plant", "numba", "sim") from missing

_LEAST_QUOTA = 1e-3
"""Least part of a round that a class has: without any, it could not run even when all others are idle."""


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


class Engine:
    """Owns the kernel's arrays: the network, its input, the clock, and a view for each class.

    Args:
        network: Operators, costs, queues.
        arrivals_s: Sorted arrival times, one array a source, in the order of `network.sources`.
        classes: The classes of the operators; a single class owns all operators.
        run_s: When the run ends.
        machine: Headroom and cost over time.
        grants: Names of classes whose rows wait at the entry until a decision grants them (managers that
            plan by the age of waiting rows). Other classes read freely and toss a coin by the keep fraction.
        seed: Fixes selectivities and coins.
    """

    def __init__(
        self,
        network: Network,
        arrivals_s: Sequence[FloatArray],
        classes: Sequence[QueryClass],
        run_s: float,
        machine: Machine | None = None,
        grants: Sequence[str] = (),
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
                    "sort them; penstock.sim.workloads.traces.read_trace does and says which line is wrong",
                )
        require_positive("run length", run_s, "in seconds of virtual time")
        self.network, self.run_s = network, run_s
        modes = [kernel.GRANTS if cls.name in grants else kernel.KEEP_ON_READ for cls in classes]
        class_of = _numbers(network, classes)
        self.state = initial_state(network, arrivals_s, machine or Machine(), class_of, modes, seed)
        ends = self.state.end_row.astype(np.int64)
        self.first_row: FloatArray = np.concatenate(([0], ends[:-1])).astype(np.int64)
        """For each source, the index of its first row."""
        self._arrivals = [
            (start, self.state.arrival_s[start:end])
            for start, end in zip(self.first_row.tolist(), ends.tolist(), strict=True)
        ]
        self.views = {cls.name: ClassView(self, cls, k) for k, cls in enumerate(classes)}
        """Views by class, in the order of turns."""

    @property
    def now_s(self) -> float:
        return float(self.state.clock[kernel.CLOCK_NOW])

    @property
    def over(self) -> bool:
        return self.now_s >= self.run_s - 1e-9

    def set_quotas(self, quotas_s: Mapping[str, float]) -> None:
        """Sets the time of each class in a round, from its next turn on."""
        total_s = sum(quotas_s.values())
        require_positive("the sum of quotas", total_s, "seconds of a round, e.g. {gold: 0.06, bulk: 0.04}")
        for k, name in enumerate(self.views):
            self.state.class_quota_s[k] = max(quotas_s[name], _LEAST_QUOTA * total_s)
            self.state.class_credit_s[k] = min(self.state.class_credit_s[k], self.state.class_quota_s[k])

    def advance(self, period_s: float) -> None:
        """Runs to the next multiple of a period; the counters of the period begin at zero."""
        s = self.state
        # visits are not cut short: the last one may have passed the next instant, or several
        instant = math.floor(self.now_s / period_s + 1e-9) + 1
        end_s = min(instant * period_s, self.run_s)
        for counter in (s.work_s, s.batches, s.rows_in, s.rows_out, s.output_sum_s, s.output_count):
            counter[:] = 0
        for k, view in enumerate(self.views.values()):
            s.class_target_s[k] = view.target_at(self.now_s)
            view.begin_period()
        done = False
        while not done:
            done = kernel.run(s, end_s)
            count = s.counts[kernel.COUNT_DELAYS]
            for k, view in enumerate(self.views.values()):
                view.add_delays(s.delays_s[:count][s.delay_class[:count] == k])
            s.counts[kernel.COUNT_DELAYS] = 0
        for view in self.views.values():
            view.end_period()

    def arrived(self, by_s: float) -> list[int]:
        """For each source, the index after the last row that has arrived by a moment."""
        return [start + int(times_s.searchsorted(by_s, side="right")) for start, times_s in self._arrivals]

    def totals(self) -> dict[str, LabelTotals]:
        """Violations by output label, over the run so far."""
        s = self.state
        return {
            label: LabelTotals(
                int(s.label_count[i]),
                int(s.label_violations[i]),
                float(s.label_violation_s[i]),
                float(s.label_violation_max_s[i]),
            )
            for i, label in enumerate(self.network.labels)
        }


def _numbers(network: Network, classes: Sequence[QueryClass]) -> list[int]:
    """For each operator, the number of its class."""
    if len(classes) == 1:
        return [0] * len(network.operators)
    known = {cls.name: k for k, cls in enumerate(classes)}
    for op in network.operators:
        if op.cls not in known:
            raise UnknownNameError(f"operator {op.name}: class", op.cls, known)
    without = set(known) - {op.cls for op in network.operators}
    if without:
        raise InvalidInputError("a class has operators", f"{min(without)} has none", "leave it out")
    return [known[op.cls] for op in network.operators]


class SimulatedPlant:
    """A stream engine in virtual time that one class has to itself.

    Args:
        network: Operators, costs, queues.
        arrivals_s: Sorted arrival times, one array a source, in the order of `network.sources`.
        cls: The class that owns the network: name and delay target.
        period_s: Time between control instants.
        run_s: When the run ends.
        machine: Headroom and cost over time.
        targets: (from_s, delay_target_s) steps that change the target while running.
        grants: Whether rows wait at the entry until a decision grants them.
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
        for _, target_s in targets:
            require_positive("delay target", target_s, "give it in seconds")
        require_positive("period", period_s, "a quarter of the delay target is a good start")
        self.network, self.cls, self.period_s, self.run_s = network, cls, period_s, run_s
        self.grants = grants
        self._engine = Engine(network, arrivals_s, [cls], run_s, machine, [cls.name] if grants else [], seed)
        self.view = self._engine.views[cls.name]
        self.view.set_targets(targets)

    def observe(self) -> Observation | None:
        """Runs one period of virtual time and reports it; `None` once the run is over."""
        if self._engine.over:
            return None
        self._engine.advance(self.period_s)
        return self.view.observe()

    def apply(self, decision: Decision) -> None:
        """Puts a decision in force from now on."""
        self.view.apply(decision)

    # -- totals, for results and tests ----------------------------------------------------------

    @property
    def histogram(self) -> DelayHistogram:
        """Delays of the whole run."""
        return self.view.histogram

    @property
    def offered_rows(self) -> int:
        return self.view.offered_rows

    @property
    def admitted_rows(self) -> int:
        return self.view.admitted_rows

    @property
    def shed_rows(self) -> int:
        return self.view.shed_rows

    @property
    def waiting_rows(self) -> int:
        return self.view.waiting_rows

    def totals(self) -> dict[str, LabelTotals]:
        """Violations by output label, over the run so far."""
        return self._engine.totals()
