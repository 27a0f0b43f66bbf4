"""ALoMa: a load monitor and a response-time monitor correct each other (pham2016 ch. 5, algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.policies.load.base import HeadroomConfig, Manager, wait_for_cost
from penstock.policies.load.headroom import toward_load
from penstock.policies.load.opoint import is_accumulating, refresh_smallest, track_smallest
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Decision, Expected, FloatArray, Observation


@dataclass(frozen=True, slots=True)
class AlomaConfig(HeadroomConfig):
    """ALoMa's settings.

    Attributes:
        headroom: The estimated capacity at the start (0.8 in the thesis); the manager adjusts it.
        smallest_step: Least change of the keep fraction (the thesis's 1 %).
        refresh_periods: After so many periods the smallest response time is doubled, so that a changed system
            can set it anew.
    """

    headroom: float = 0.8
    smallest_step: float = 0.01
    refresh_periods: int = 200

    def __post_init__(self) -> None:
        HeadroomConfig.__post_init__(self)
        if not 0.0 < self.smallest_step < 1.0:
            raise InvalidInputError(
                "smallest_step lies between 0 and 1", self.smallest_step, "0.01 is the thesis's"
            )
        if self.refresh_periods < 1:
            raise InvalidInputError(
                "refresh_periods must be at least 1", self.refresh_periods, "200 is usual"
            )

    def build(self) -> AlomaManager:
        return AlomaManager(self)


class LoadState(Enum):
    """What the response time says about the load (pham2016 5.2.1)."""

    NORMAL = "normal"
    UNDER_THRESHOLD = "UT"
    OVER_THRESHOLD = "OT"


@dataclass(slots=True)
class AlomaState:
    capacity: float = 0.0
    keep_fraction: float = 1.0
    smallest_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """By output, the smallest delay; NaN where no delay was seen yet. This field and the next are arrays,
    because converting lists took 70 % of the time of a decision."""
    previous_s: FloatArray = field(default_factory=lambda: np.empty(0))
    since_refresh: int = 0
    readmissions_in_a_row: int = 0
    extra_drops_in_a_row: int = 0


class AlomaManager(Manager[AlomaConfig, AlomaState]):
    """Corrects the estimated capacity wherever load and response time disagree.

    L is the load of the admitted rows, and capacity is the estimate L_C. The state is OT if the mean delay of
    any output exceeds the target, UT if any output has passed its O point, and normal otherwise.

        L > capacity,  normal                    raise capacity toward L            (eq. 5.1)
        L > capacity,  OT                        shed L - capacity more
        L > capacity,  UT, shedding and falling  raise capacity, re-admit x %       (eq. 5.2)
        L <= capacity, OT and rising             lower capacity, shed x % more
        L <= capacity, otherwise, shedding       re-admit capacity - L

    For the k-th such step in a row, x = 1 + log2(k). Delays rise or fall if those of more than half of the
    outputs concerned do. The keep fraction is multiplied by (1 - x) or (1 + x), at least by 1 % more or less.
    The manager uses only measured response times, so it does not depend on the scheduler's fairness or on
    counting queues.
    """

    name = "aloma"
    state_type = AlomaState

    def _initial_state(self) -> AlomaState:
        return AlomaState(capacity=self.config.headroom)

    def decide(self, observation: Observation) -> Decision:
        state = self.state
        state.keep_fraction = observation.keep_fraction
        state.capacity *= observation.capacity_scale
        delay_s, previous_s = self._monitor(observation)
        if observation.cost_per_row_s is None:
            return wait_for_cost(observation, state.capacity)
        if delay_s.size == 0 and observation.offered_rows + observation.waiting_rows > 0:
            keep, reason = state.keep_fraction, "no row came out: nothing to compare the load with"
            return Decision(observation.id, keep, reason, headroom=state.capacity)
        load, target_s = observation.admitted_load, observation.delay_target_s
        load_state = self._load_state(delay_s, target_s)
        readmissions, extra_drops = state.readmissions_in_a_row, state.extra_drops_in_a_row
        state.readmissions_in_a_row = state.extra_drops_in_a_row = 0
        shedding = state.keep_fraction < 1.0
        action = "agree, no change"
        if load > state.capacity:
            if load_state is LoadState.NORMAL:
                state.capacity = toward_load(state.capacity, load)
                action = "raise capacity"
            elif load_state is LoadState.OVER_THRESHOLD:
                self._drop((load - state.capacity) / load)
                action = "shed the excess load"
            elif shedding and _majority(delay_s <= previous_s, delay_s <= target_s):
                state.capacity = toward_load(state.capacity, load)
                state.readmissions_in_a_row = readmissions + 1
                self._readmit(_percent(state.readmissions_in_a_row))
                action = "raise capacity, re-admit a little"
        elif load_state is LoadState.OVER_THRESHOLD:
            if _majority(delay_s >= previous_s, delay_s > target_s):
                state.capacity = toward_load(state.capacity, load)
                state.extra_drops_in_a_row = extra_drops + 1
                self._drop(_percent(state.extra_drops_in_a_row))
                action = "lower capacity, shed a little more"
        elif shedding:
            # with nothing admitted there is no load to compare: a silent stream may come back in full
            self._readmit((state.capacity - load) / load if load > 0 else math.inf)
            action = "re-admit the free capacity"
        reason = f"{load_state.value}: load {load:.3f}, capacity {state.capacity:.3f}: {action}"
        keep = state.keep_fraction
        expected = Expected(target_s if keep < 1.0 else None, keep * observation.offered_rows)
        return Decision(observation.id, keep, reason, expected, headroom=state.capacity)

    def snapshot(self) -> dict[str, object]:
        state = self.state
        lists: Any = {"smallest_s": _to_json(state.smallest_s), "previous_s": _to_json(state.previous_s)}
        return {**Manager.snapshot(self), "state": {**asdict(state), **lists}}

    def restore(self, snapshot: dict[str, object]) -> None:
        Manager.restore(self, snapshot)
        state: Any = self.state
        state.smallest_s, state.previous_s = _from_json(state.smallest_s), _from_json(state.previous_s)

    def _monitor(self, observation: Observation) -> tuple[FloatArray, FloatArray]:
        """The current and the previous mean delay of each output that had rows. Updates the O points."""
        state, outputs = self.state, observation.output_delay_s
        if state.smallest_s.size != outputs.size:
            state.smallest_s = state.previous_s = np.full(outputs.size, np.nan)
        state.since_refresh += 1
        if state.since_refresh >= self.config.refresh_periods:
            state.smallest_s, state.since_refresh = refresh_smallest(state.smallest_s), 0
        state.smallest_s = track_smallest(state.smallest_s, outputs)
        before = np.where(np.isnan(state.previous_s), outputs, state.previous_s)
        had_rows = ~np.isnan(outputs)
        if had_rows.all():
            state.previous_s, self._smallest_now = outputs, state.smallest_s
            return outputs, before
        state.previous_s = np.where(had_rows, outputs, state.previous_s)
        self._smallest_now = state.smallest_s[had_rows]
        return outputs[had_rows], before[had_rows]

    def _load_state(self, delay_s: FloatArray, target_s: float) -> LoadState:
        if (delay_s > target_s).any():
            return LoadState.OVER_THRESHOLD
        return LoadState.UNDER_THRESHOLD if is_accumulating(self._smallest_now, delay_s) else LoadState.NORMAL

    def _drop(self, fraction: float) -> None:
        step = max(self.config.smallest_step, fraction)
        self.state.keep_fraction = self.clamp_keep(self.state.keep_fraction * (1.0 - step))

    def _readmit(self, fraction: float) -> None:
        step = max(self.config.smallest_step, fraction)
        # the keep fraction starts from at least one step: from zero it would never recover
        keep = max(self.state.keep_fraction, self.config.smallest_step)
        self.state.keep_fraction = self.clamp_keep(keep * (1.0 + step))


def _percent(times_in_a_row: int) -> float:
    """Eq. 5.2 as a fraction."""
    return (1.0 + math.log2(times_in_a_row)) / 100.0


def _majority(moved: npt.NDArray[np.bool_], concerned: npt.NDArray[np.bool_]) -> bool:
    """Whether more than half of the concerned outputs moved."""
    return bool(2 * (moved & concerned).sum() > concerned.sum())


def _to_json(values: FloatArray) -> list[float | None]:
    return [None if math.isnan(v) else v for v in values.tolist()]


def _from_json(values: list[float | None]) -> FloatArray:
    return np.array([np.nan if v is None else v for v in values], np.float64)
