"""CTRL: load shedding by feedback control (tu2006 eq. 10, 11, 13 and appendix A)."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.policies.load.base import (
    HeadroomConfig,
    Manager,
    Shedding,
    decide_by_allowance,
    describe_estimate,
    wait_for_cost,
)
from penstock.policies.load.design import CTRL_CONTROLLER, Controller
from penstock.policies.load.queue import advance_inside, virtual_queue
from penstock.vocabulary.model import Decision, ManagerTraits, Observation


@dataclass(frozen=True, slots=True)
class CtrlConfig(HeadroomConfig):
    """CTRL's settings.

    Attributes:
        headroom: Tuned by hand in the paper; `penstock calibrate` fits it.
        controller: The gains, from `controller_from_poles` or `controller_from_response`.
        shedding: Where rows are shed: at the entry (eq. 13), or inside the network as Borealis does.
    """

    controller: Controller = CTRL_CONTROLLER
    shedding: Shedding = "entry"

    def traits(self) -> ManagerTraits:
        return ManagerTraits(sheds_inside=self.shedding == "network", headroom_setting="headroom")

    def build(self) -> CtrlManager:
        return CtrlManager(self)


@dataclass(slots=True)
class CtrlState:
    inside_rows: float = 0.0
    last_error_s: float = 0.0
    last_u_rows: float = 0.0
    share: float = 1.0
    """The factor by which the class's share of the capacity has changed."""


class CtrlManager(Manager[CtrlConfig, CtrlState]):
    """Steers the estimated delay to the target with a designed controller.

        estimated_s = (queue_rows + 1) * cost / headroom                                      (eq. 11)
        error_s     = delay_target_s - estimated_s
        u_rows      = headroom / cost * [b0 error_s + b1 last_error_s] - a * last_u_rows      (eq. 10 x T)
        allowed_per_s = (u_rows + departed_rows) / period_s

    The paper has a rate where this manager has rows. With rows, a period that was cut short does not inflate
    the remembered value.

    The queue is virtual: rows in minus tuples out. With shared operators this count is wrong, and CTRL does
    not see the overload. With a wrong headroom the delay settles at target * headroom / true headroom.
    """

    name = "ctrl"
    state_type = CtrlState

    def decide(self, observation: Observation) -> Decision:
        gains, state = self.config.controller, self.state
        state.share *= observation.capacity_scale
        headroom = self.config.headroom * state.share
        state.inside_rows = advance_inside(state.inside_rows, observation)
        if observation.cost_per_row_s is None:
            return wait_for_cost(observation, headroom)
        queue_rows = virtual_queue(state.inside_rows, observation)
        rows_per_s = headroom / observation.cost_per_row_s
        estimated_s = (queue_rows + 1) / rows_per_s
        error_s = observation.delay_target_s - estimated_s
        correction_s = gains.b0 * error_s + gains.b1 * state.last_error_s
        u_rows = rows_per_s * correction_s - gains.a * state.last_u_rows
        allowed_per_s = (u_rows + observation.departed_rows) / observation.period_s
        state.last_error_s, state.last_u_rows = error_s, u_rows
        reason = describe_estimate(estimated_s, observation, f"{queue_rows:.0f} rows queued")
        return decide_by_allowance(
            self,
            observation,
            allowed_per_s,
            self.config.shedding,
            headroom,
            reason,
            observation.delay_target_s,
        )
