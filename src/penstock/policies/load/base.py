"""What load managers have in common: configurations, JSON snapshots, decisions made from an allowance."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar

from penstock.vocabulary.errors import InvalidInputError, require_positive
from penstock.vocabulary.model import Decision, Expected, ManagerTraits, Observation

SNAPSHOT_FORMAT = 1

Shedding = Literal["entry", "network"]


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Settings that all load managers have.

    Attributes:
        max_drop_fraction: The largest part that is shed (99 % in pham2016 5.3.2.6), so that some output
            remains.
    """

    max_drop_fraction: float = 0.99

    def __post_init__(self) -> None:
        if not 0.0 < self.max_drop_fraction <= 1.0:
            raise InvalidInputError(
                "max_drop_fraction must lie in (0, 1]", self.max_drop_fraction, "0.99 keeps a trickle alive"
            )

    def period_s(self, delay_target_s: float) -> float:
        """The control period for a target."""
        return self.traits().period_s(delay_target_s)

    def traits(self) -> ManagerTraits:
        """What a plant must know about a manager with these settings."""
        return ManagerTraits()


@dataclass(frozen=True, slots=True)
class HeadroomConfig(ManagerConfig):
    """Settings of managers whose headroom is given, or that start from a given headroom."""

    headroom: float = 0.97

    def __post_init__(self) -> None:
        ManagerConfig.__post_init__(self)
        require_positive("headroom", self.headroom, "the fraction of the CPU that queries get, e.g. 0.97")

    def traits(self) -> ManagerTraits:
        return ManagerTraits(headroom_setting="headroom")


StateT = TypeVar("StateT")
ConfigT = TypeVar("ConfigT", bound=ManagerConfig)


class Manager(Generic[ConfigT, StateT]):
    """Base of the load managers: a frozen `config`, a small mutable `state` of JSON values, and `decide`."""

    name: ClassVar[str]
    state_type: ClassVar[type[Any]]

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.state: StateT = self._initial_state()

    @property
    def traits(self) -> ManagerTraits:
        """What the plant must know about the manager."""
        return self.config.traits()

    def _initial_state(self) -> StateT:
        state: StateT = self.state_type()
        return state

    def decide(self, observation: Observation) -> Decision:
        """How much to keep from now on, by what was observed."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, object]:
        """The state as JSON values. After `restore`, a manager of the same settings goes on identically."""
        state: Any = self.state
        return {"format": SNAPSHOT_FORMAT, "manager": self.name, "state": asdict(state)}

    def restore(self, snapshot: dict[str, object]) -> None:
        """Puts a snapshot's state in force."""
        if snapshot.get("format") != SNAPSHOT_FORMAT:
            raise InvalidInputError(
                f"a snapshot has format {SNAPSHOT_FORMAT}",
                snapshot.get("format"),
                "take it with this version",
            )
        if snapshot.get("manager") != self.name:
            raise InvalidInputError(
                f"a snapshot for {self.name} was taken from {self.name}",
                snapshot.get("manager"),
                "restore its own",
            )
        values = snapshot.get("state")
        known = {f.name for f in fields(self.state_type)}
        if not isinstance(values, dict) or set(values) != known:
            raise InvalidInputError(
                "a snapshot holds every field of the state", values, f"fields: {sorted(known)}"
            )
        self.state = self.state_type(**values)

    def clamp_keep(self, keep_fraction: float) -> float:
        """A keep fraction within [1 - max_drop_fraction, 1]."""
        return min(1.0, max(1.0 - self.config.max_drop_fraction, keep_fraction))


def keep_for_allowance(observation: Observation, offered_s: float, allowed_s: float) -> float:
    """The keep fraction that lets in `allowed_s` of new load, beside the rows that wait at the entry already.

    Rows at the entry are decided about when they are read. A keep fraction therefore acts on waiting rows as
    well as on rows that are still to come. Of both together it must keep what the fraction in force keeps of
    the waiting rows, and the new load that may come in. All terms are CPU seconds:

        keep = (keep_fraction * waiting_s + allowed_s) / (waiting_s + offered_s)

    With nothing waiting this is tu2006 eq. 13, alpha = 1 - v / f_in.
    """
    waiting_s = observation.waiting_rows * (observation.cost_per_row_s or 0.0)
    everything_s = waiting_s + offered_s
    if everything_s <= 0:
        return 1.0
    return (observation.keep_fraction * waiting_s + allowed_s) / everything_s


def decide_by_allowance(
    manager: Manager[Any, Any],
    observation: Observation,
    allowed_per_s: float,
    shedding: Shedding,
    headroom: float,
    reason: str,
    expected_delay_s: float | None,
) -> Decision:
    """Turns "v rows a second may come in" into a decision, at the entry or inside the network.

    Inside the network, the load to drop is Li - La. The text of tu2006 4.5.2 has Lq + Li - La. But v is
    already the load that may come *in addition* to the queue. The printed formula would empty the queue in
    every period and settle at 0.31 of the target (see docs/policies.md).
    """
    expected = Expected(expected_delay_s, max(0.0, allowed_per_s) * observation.period_s)
    if shedding == "network":
        cost_s = observation.cost_per_row_s or 0.0
        excess_per_s = max(0.0, observation.offered_rate_per_s - allowed_per_s)
        shed_load_s = excess_per_s * cost_s * observation.period_s
        return Decision(observation.id, 1.0, reason, expected, shed_load_s=shed_load_s, headroom=headroom)
    cost_s = observation.cost_per_row_s or 0.0
    keep = keep_for_allowance(
        observation, observation.offered_rows * cost_s, allowed_per_s * observation.period_s * cost_s
    )
    keep = manager.clamp_keep(keep)
    return Decision(observation.id, keep, reason, expected, headroom=headroom)


def wait_for_cost(observation: Observation, headroom: float | None) -> Decision:
    """Leaves the keep fraction as it is: before the first row has been processed, no cost is known."""
    return Decision(observation.id, observation.keep_fraction, "no cost measured yet", headroom=headroom)


def describe_estimate(estimated_s: float, observation: Observation, detail: str) -> str:
    """The reason of a decision, for managers that steer an estimated delay."""
    return f"estimated delay {estimated_s:.2f} s of {observation.delay_target_s:g} s, {detail}"


def describe_manager(manager: Manager[Any, Any]) -> dict[str, object]:
    """The part of a run's configuration from which a replay builds the same manager."""
    return {"manager": manager.name, "manager_settings": asdict(manager.config)}
