"""Aurora's load shedder (tu2006 fig. 1; pham2016 3.3.1; Tatbul et al. 2003)."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.policies.load.base import HeadroomConfig, Manager, Shedding, decide_by_allowance, wait_for_cost
from penstock.vocabulary.model import Decision, ManagerTraits, Observation


@dataclass(frozen=True, slots=True)
class AuroraConfig(HeadroomConfig):
    """Aurora's settings: the headroom, which is given and not measured, and where rows are shed."""

    shedding: Shedding = "entry"

    def traits(self) -> ManagerTraits:
        return ManagerTraits(sheds_inside=self.shedding == "network", headroom_setting="headroom")

    def build(self) -> AuroraManager:
        return AuroraManager(self)


@dataclass(slots=True)
class AuroraState:
    """The manager is an open loop. It remembers only the factor by which its class's share has changed."""

    share: float = 1.0


class AuroraManager(Manager[AuroraConfig, AuroraState]):
    """Admits as many rows as the CPU can process, whatever has queued up.

    In every period, with L the load of the admitted rows and L0 = headroom,

        allowed_per_s = headroom / cost_per_row_s        (shed L - L0 if L > L0, else re-admit)

    The manager is an open loop: it looks at neither the queue nor the delay, so the delay target plays no
    part. If the headroom is a little too high, the delay grows without bound. If it is too low, rows are lost
    for nothing.
    """

    name = "aurora"
    state_type = AuroraState

    def decide(self, observation: Observation) -> Decision:
        self.state.share *= observation.capacity_scale
        headroom = self.config.headroom * self.state.share
        if observation.cost_per_row_s is None:
            return wait_for_cost(observation, headroom)
        allowed_per_s = headroom / observation.cost_per_row_s
        load = observation.offered_load
        reason = f"load {load:.3f} {'above' if load > headroom else 'within'} capacity {headroom:.3f}"
        return decide_by_allowance(
            self, observation, allowed_per_s, self.config.shedding, headroom, reason, None
        )
