"""The control cycle: observe -> decide -> check -> apply. Policies suggest; safety is owned here."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.vocabulary.errors import require_fraction
from penstock.vocabulary.model import Admission, Decision, Expected, LoadManager, Observation, Plant

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SafetyLimits:
    """What no manager may cross.

    Attributes:
        min_keep_fraction: Floor of the keep fraction, the grant's included. Rows that a grant sheds as late
            and load shed inside the network do not count against it.
    """

    min_keep_fraction: float = 0.0

    def __post_init__(self) -> None:
        require_fraction("min_keep_fraction", self.min_keep_fraction, "0.05 keeps a twentieth whatever comes")


NO_LIMITS = SafetyLimits()


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the cycle: what was seen, suggested and put in force, and what the check had to say."""

    observation: Observation
    proposed: Decision
    applied: Decision
    notes: tuple[str, ...]
    dry_run: bool


class Recorder(Protocol):
    """Keeps the steps, for example a run directory."""

    def record(self, step: Step) -> None:
        """Keeps a step."""
        ...


class CheckedManager:
    """A load manager whose decisions are checked and recorded before anybody carries them out.

    Nothing is caught: when the manager or the recorder raises, the error reaches the caller, and what was in
    force stays in force.

    Args:
        manager: What decides.
        limits: What the check enforces.
        dry_run: Decide, check and record, but shed nothing.
        recorder: Gets every step.
    """

    def __init__(
        self,
        manager: LoadManager,
        limits: SafetyLimits = NO_LIMITS,
        dry_run: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.manager, self.limits = manager, limits
        self.dry_run, self.recorder = dry_run, recorder
        self.in_force = Decision(-1, 1.0, "nothing decided yet")
        """What was last carried out; whoever carries a step out says so here."""

    def decide(self, observation: Observation) -> Step:
        """One decision on what was observed, checked and recorded."""
        proposed = self.manager.decide(observation)
        applied, notes = check(proposed, observation, self.in_force, self.limits)
        if self.dry_run:
            applied = _shed_nothing(proposed, observation)
        for note in notes:
            _log.warning("class %s, observation %d: %s", observation.cls, observation.id, note)
        step = Step(observation, proposed, applied, notes, self.dry_run)
        if self.recorder is not None:
            self.recorder.record(step)
        return step


class Cycle(CheckedManager):
    """Drives one plant by one load manager: asks the plant what there is, decides, and has it carried out.

    A step is recorded before it is applied, so that a plant that fails on it leaves its cause behind. When
    the plant raises, no decision is applied for that observation; the plant goes on with the last one.

    Args:
        plant: What is controlled.
        manager: What decides.
        limits: What the check enforces.
        dry_run: Decide, check and record, but shed nothing.
        recorder: Gets every step.
    """

    def __init__(
        self,
        plant: Plant,
        manager: LoadManager,
        limits: SafetyLimits = NO_LIMITS,
        dry_run: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(manager, limits, dry_run, recorder)
        self.plant = plant

    def step(self) -> Step | None:
        """One turn; `None` when the plant is over."""
        observation = self.plant.observe()
        if observation is None:
            return None
        step = self.decide(observation)
        self.plant.apply(step.applied)
        self.in_force = step.applied
        return step

    def run(self, on_step: Callable[[Step], None] | None = None) -> int:
        """Turns until the plant is over; returns the number of steps."""
        steps = 0
        while (step := self.step()) is not None:
            steps += 1
            if on_step is not None:
                on_step(step)
        return steps


def check(
    proposed: Decision, observation: Observation, in_force: Decision, limits: SafetyLimits
) -> tuple[Decision, tuple[str, ...]]:
    """The decision to apply, and a note for every change or refusal; a decision in order stays as it is."""
    faults = _faults(proposed, observation)
    if faults:
        # a load to shed and a grant are amounts, not rates: repeating them would shed and admit twice
        kept = replace(
            in_force,
            observation_id=observation.id,
            shed_load_s=0.0,
            grant=None,
            reason=f"{proposed.reason} (refused, the previous decision stays in force)",
        )
        return kept, tuple(f"refused: {fault}" for fault in faults)
    notes: list[str] = []
    floor, grant = limits.min_keep_fraction, proposed.grant
    keep = _at_least(floor, proposed.keep_fraction, "keep fraction", notes)
    if grant is not None:
        grant_keep, cut_s = _at_least(floor, grant.keep_fraction, "grant's keep fraction", notes), grant.cut_s
        if cut_s > observation.now_s:
            # rows that arrive after the decision would be decided by it unseen
            notes.append(f"grant's cut moved from {cut_s:g} s to now, {observation.now_s:g} s")
            cut_s = observation.now_s
        if notes:
            grant = replace(grant, cut_s=cut_s, keep_fraction=grant_keep)
    return (replace(proposed, keep_fraction=keep, grant=grant) if notes else proposed), tuple(notes)


def _faults(proposed: Decision, observation: Observation) -> list[str]:
    """What makes a decision unusable. NaN fails every comparison, so rules are stated as what must hold."""
    faults = []
    if proposed.observation_id != observation.id:
        faults.append(f"decided on observation {proposed.observation_id}, not on {observation.id}")
    if not 0.0 <= proposed.keep_fraction <= 1.0:
        faults.append(f"keep fraction {proposed.keep_fraction} is not in [0, 1]")
    if not 0.0 <= proposed.shed_load_s < math.inf:
        faults.append(f"load to shed {proposed.shed_load_s} s is not a finite number of at least 0")
    if proposed.grant is not None:
        if not 0.0 <= proposed.grant.keep_fraction <= 1.0:
            faults.append(f"grant's keep fraction {proposed.grant.keep_fraction} is not in [0, 1]")
        if math.isnan(proposed.grant.cut_s) or math.isnan(proposed.grant.shed_before_s):
            faults.append("grant's times are not numbers")
        if proposed.grant.limit_rows is not None and not proposed.grant.limit_rows >= 0.0:
            faults.append(f"grant's limit of {proposed.grant.limit_rows} rows is not at least 0")
    return faults


def _at_least(floor: float, keep_fraction: float, name: str, notes: list[str]) -> float:
    if keep_fraction >= floor:
        return keep_fraction
    notes.append(f"{name} raised from {keep_fraction:g} to the limit of {floor:g}")
    return floor


def _shed_nothing(proposed: Decision, observation: Observation) -> Decision:
    """What a dry run applies: everything is kept; if the manager gives grants, all that waits is granted."""
    grant = None if proposed.grant is None else Admission(observation.now_s, -math.inf, 1.0)
    reason = f"{proposed.reason} (dry run, nothing shed)"
    return Decision(observation.id, 1.0, reason, Expected(), grant=grant, headroom=proposed.headroom)
