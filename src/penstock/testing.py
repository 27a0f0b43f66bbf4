"""Test doubles for plants, managers and clocks. Public: use them to test your own policies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Decision, DelayStats, ManagerTraits, Observation, Plant

_IDLE = Observation(
    id=1,
    cls="gold",
    now_s=1.0,
    period_s=0.5,
    delay_target_s=2.0,
    keep_fraction=1.0,
    offered_rows=0,
    admitted_rows=0,
    shed_rows=0,
    departed_rows=0,
    waiting_rows=0,
    offered_load=0.0,
    queued_load_s=0.0,
    network_load_s=0.0,
    cost_per_row_s=0.005,
    work_s=0.0,
    busy_s=0.0,
    delay=DelayStats(),
)


def observation(**overrides: Any) -> Observation:
    """An observation of an idle class whose cost is known; name the fields that matter to the test."""
    return replace(_IDLE, **overrides)


class ManualClock:
    """Time that passes when told to; called like `time.time`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, by_s: float) -> float:
        """Lets time pass; returns the new time."""
        if not 0 <= by_s < float("inf"):
            raise InvalidInputError("time goes forward", by_s, "advance by seconds, zero or more")
        self.now_s += by_s
        return self.now_s


class ScriptedPlant:
    """A plant that shows a list of observations whatever is decided; `applied` holds what was."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self._observations = iter(list(observations))
        self.applied: list[Decision] = []

    def observe(self) -> Observation | None:
        """The next observation of the list; `None` after the last."""
        return next(self._observations, None)

    def apply(self, decision: Decision) -> None:
        """Keeps the decision, and does nothing."""
        self.applied.append(decision)


class RecordingPlant:
    """Wraps a plant and keeps what was observed and applied."""

    def __init__(self, plant: Plant) -> None:
        self.plant = plant
        self.observations: list[Observation] = []
        self.applied: list[Decision] = []

    def observe(self) -> Observation | None:
        """What the plant shows."""
        seen = self.plant.observe()
        if seen is not None:
            self.observations.append(seen)
        return seen

    def apply(self, decision: Decision) -> None:
        """Keeps the decision, and lets the plant carry it out."""
        self.applied.append(decision)
        self.plant.apply(decision)


class ScriptedManager:
    """A load manager that gives a list of decisions whatever it observes; `observed` holds what it saw."""

    name = "scripted"
    traits = ManagerTraits()

    def __init__(self, decisions: Iterable[Decision]) -> None:
        self._decisions = list(decisions)
        self._given = 0
        self.observed: list[Observation] = []

    def decide(self, observation: Observation) -> Decision:
        """The next decision of the list."""
        if self._given >= len(self._decisions):
            raise InvalidInputError(
                "a scripted manager has a decision for every observation",
                f"{len(self._decisions)} decisions",
                "lengthen the script",
            )
        self.observed.append(observation)
        self._given += 1
        return self._decisions[self._given - 1]

    def snapshot(self) -> dict[str, object]:
        """How many decisions were given."""
        return {"given": self._given}

    def restore(self, snapshot: dict[str, object]) -> None:
        """Goes on after as many decisions."""
        self._given = int(str(snapshot["given"]))
