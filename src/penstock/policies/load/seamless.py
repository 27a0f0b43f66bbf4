"""SEaMLeSS: control on queued load, headroom learned from the converged delay (pham2016 chapter 4)."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.policies.load.base import (
    HeadroomConfig,
    Manager,
    describe_estimate,
    keep_for_allowance,
    wait_for_cost,
)
from penstock.policies.load.design import CTRL_CONTROLLER, Controller
from penstock.policies.load.headroom import from_converged_delay
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Decision, Expected, Observation

ANOTHER_CAPACITY = 0.05
"""If the capacity changes by a larger part than this, delays that were measured before are forgotten."""


@dataclass(frozen=True, slots=True)
class SeamlessConfig(HeadroomConfig):
    """SEaMLeSS's settings.

    Attributes:
        headroom: The headroom at the start; the manager adjusts it.
        controller: The gains, as for CTRL.
        adjustment_periods: P, how many shedding periods an adjustment averages (best 20 to 40, 4.3.3.3).
    """

    headroom: float = 0.8
    controller: Controller = CTRL_CONTROLLER
    adjustment_periods: int = 30

    def __post_init__(self) -> None:
        HeadroomConfig.__post_init__(self)
        if self.adjustment_periods < 1:
            raise InvalidInputError(
                "adjustment_periods must be at least 1", self.adjustment_periods, "30 is usual"
            )

    def build(self) -> SeamlessManager:
        return SeamlessManager(self)


@dataclass(slots=True)
class SeamlessState:
    headroom: float = 0.0
    last_error_s: float = 0.0
    last_u_s: float = 0.0
    shedding_periods: int = 0
    delay_sum_s: float = 0.0


class SeamlessManager(Manager[SeamlessConfig, SeamlessState]):
    """Steers the delay by the load in the physical queues, whatever the network looks like.

        estimated_s = queued_load_s / headroom                                     (eq. 4.1, 4.2)
        error_s     = delay_target_s - estimated_s          (eq. 4.3 prints the sign reversed: erratum 1)
        u_s         = headroom * [b0 error_s + b1 last_error_s] - a * last_u_s     (eq. 4.3, CPU seconds)
        allowed_s   = u_s + headroom * period_s             to be compared with offered_load * period_s

    While rows are shed, the measured delay should converge to the target. If it converges to D' instead,
    headroom <- headroom * target / D', every `adjustment_periods` shedding periods. The manager assumes a
    fair scheduler: under a priority scheduler, a queue of low priority drains more slowly than estimated.
    """

    name = "seamless"
    state_type = SeamlessState

    def _initial_state(self) -> SeamlessState:
        return SeamlessState(headroom=self.config.headroom)

    def decide(self, observation: Observation) -> Decision:
        state, gains = self.state, self.config.controller
        state.headroom *= observation.capacity_scale
        if abs(observation.capacity_scale - 1.0) > ANOTHER_CAPACITY:
            # delays under the old capacity say nothing about the new one
            state.shedding_periods, state.delay_sum_s = 0, 0.0
        self._adjust_headroom(observation)
        headroom = state.headroom
        if observation.cost_per_row_s is None:
            return wait_for_cost(observation, headroom)
        estimated_s = observation.queued_load_s / headroom
        error_s = observation.delay_target_s - estimated_s
        u_s = headroom * (gains.b0 * error_s + gains.b1 * state.last_error_s) - gains.a * state.last_u_s
        state.last_error_s, state.last_u_s = error_s, u_s
        allowed_s = u_s + headroom * observation.period_s
        offered_s = observation.offered_load * observation.period_s
        keep = self.clamp_keep(keep_for_allowance(observation, offered_s, allowed_s))
        reason = describe_estimate(estimated_s, observation, f"headroom {headroom:.3f}")
        expected = Expected(observation.delay_target_s, keep * observation.offered_rows)
        return Decision(observation.id, keep, reason, expected, headroom=headroom)

    def _adjust_headroom(self, observation: Observation) -> None:
        state, mean_s = self.state, observation.delay.mean_s
        if observation.keep_fraction < 1.0 and mean_s is not None:
            state.shedding_periods += 1
            state.delay_sum_s += mean_s
        if state.shedding_periods >= self.config.adjustment_periods:
            converged_s = state.delay_sum_s / state.shedding_periods
            state.headroom = from_converged_delay(state.headroom, observation.delay_target_s, converged_s)
            state.shedding_periods, state.delay_sum_s = 0, 0.0
