"""BASELINE of tu2006 section 5: inverts the delay model, without a controller."""

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
from penstock.policies.load.queue import advance_inside, virtual_queue
from penstock.vocabulary.model import Decision, ManagerTraits, Observation


@dataclass(frozen=True, slots=True)
class BaselineConfig(HeadroomConfig):
    """Baseline's settings: the headroom, which is given and not measured, and where rows are shed."""

    shedding: Shedding = "entry"

    def traits(self) -> ManagerTraits:
        return ManagerTraits(sheds_inside=self.shedding == "network", headroom_setting="headroom")

    def build(self) -> BaselineManager:
        return BaselineManager(self)


@dataclass(slots=True)
class BaselineState:
    inside_rows: float = 0.0
    share: float = 1.0
    """The factor by which the class's share of the capacity has changed."""


class BaselineManager(Manager[BaselineConfig, BaselineState]):
    """Fills the queue up to the target in one step.

    The target allows delay_target_s * headroom / cost rows in the queue. In the period, the CPU processes
    period_s * headroom / cost further rows, so

        allowed_rows = (delay_target_s + period_s) * headroom / cost_per_row_s - queue_rows

    This is feedback without a designed controller: the manager corrects the whole error at once.
    """

    name = "baseline"
    state_type = BaselineState

    def decide(self, observation: Observation) -> Decision:
        self.state.share *= observation.capacity_scale
        headroom = self.config.headroom * self.state.share
        self.state.inside_rows = advance_inside(self.state.inside_rows, observation)
        if observation.cost_per_row_s is None:
            return wait_for_cost(observation, headroom)
        queue_rows = virtual_queue(self.state.inside_rows, observation)
        rows_per_s = headroom / observation.cost_per_row_s
        allowed_rows = (observation.delay_target_s + observation.period_s) * rows_per_s - queue_rows
        estimated_s = (queue_rows + 1) / rows_per_s
        reason = describe_estimate(estimated_s, observation, f"{queue_rows:.0f} rows queued")
        allowed_per_s = allowed_rows / observation.period_s
        return decide_by_allowance(
            self,
            observation,
            allowed_per_s,
            self.config.shedding,
            headroom,
            reason,
            observation.delay_target_s,
        )
