"""Replay: gives a recorded run's observations to the same or another load manager.

A policy is a function of its observations, so the same manager with the same settings decides identically.
Another manager is replayed in open loop: it sees the consequences of the recorded decisions, not of its own.
A replay shows where it would have decided otherwise, not how the run would have gone; for that, simulate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.policies.load import Manager, manager_config
from penstock.policies.load.base import describe_manager
from penstock.policies.load.design import Controller
from penstock.record.layout import encode_decision
from penstock.record.reading import RecordedRun
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Decision, FloatArray, LoadManager, Observation

_NOT_FINITE = ("Infinity", "-Infinity", "NaN")


class Difference(NamedTuple):
    """A recorded decision and the replayed manager's decision that differs from it."""

    observation_id: int
    recorded: Decision
    replayed: Decision


@dataclass(frozen=True)
class ReplayResult:
    """How far two managers agree on one run. Means and the maximum are `None` without decisions.

    Attributes:
        recorded: The recorded decisions.
        decisions: The replayed manager's decisions on the same observations.
        identical: How many decisions are equal in every field.
        first_difference: The first decision that differs.
    """

    recorded: list[Decision]
    decisions: list[Decision]
    identical: int
    first_difference: Difference | None

    @property
    def total(self) -> int:
        """Number of decisions."""
        return len(self.decisions)

    @property
    def mean_keep_recorded(self) -> float | None:
        """Mean keep fraction of the recorded decisions; `None` for no decision."""
        return _mean(_keep(self.recorded))

    @property
    def mean_keep_replayed(self) -> float | None:
        """Mean keep fraction of the replayed decisions; `None` for no decision."""
        return _mean(_keep(self.decisions))

    @property
    def mean_keep_difference(self) -> float | None:
        """Mean absolute difference of the keep fractions."""
        return _mean(self._keep_differences)

    @property
    def max_keep_difference(self) -> float | None:
        """Largest absolute difference of the keep fractions."""
        differences = self._keep_differences
        return float(differences.max()) if differences.size else None

    @property
    def _keep_differences(self) -> FloatArray:
        differences: FloatArray = np.abs(_keep(self.recorded) - _keep(self.decisions))
        return differences[np.isfinite(differences)]


def replay(
    run: RecordedRun, managers: LoadManager | Mapping[str, LoadManager], exchange: bool = True
) -> ReplayResult:
    """Gives the recorded observations to the managers of their classes and compares the decisions.

    Args:
        run: The run. If it was cut off, only observations with a decision are replayed.
        managers: Managers by class, or one manager for a run of one class. They are fresh, or restored from
            a snapshot of the moment at which the observations begin.
        exchange: Whether a manager that was exchanged during the run is exchanged in the replay too.
    """
    by_class = _by_class(run, managers)
    changes = _changes(run) if exchange else []
    recorded = run.decisions[: len(run.observations)]
    decisions: list[Decision] = []
    identical, first = 0, None
    for observation, before in zip(run.observations, recorded, strict=False):
        while changes and _applies_to(changes[0], observation):
            change = changes.pop(0)
            by_class[change["cls"]] = rebuild_manager(change)
        now = by_class[observation.cls].decide(observation)
        decisions.append(now)
        # encodings are compared: in them NaN, which a refused decision may have, equals itself
        if encode_decision(before) == encode_decision(now):
            identical += 1
        elif first is None:
            first = Difference(observation.id, before, now)
    return ReplayResult(recorded, decisions, identical, first)


def shed_summary(run: RecordedRun) -> list[dict[str, Any]]:
    """Decisions of class shedders by query: number, kept fraction of rows that were not late, last reason."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in run.shedding:
        names = {name: line[name] for name in ("cls", "query", "shedder")}
        counts = {"decisions": 0, "kept": 0, "shed": 0}
        into = found.setdefault(tuple(names.values()), {**names, **counts})
        into["decisions"] += 1
        into["kept"] += line["kept_rows"]
        into["shed"] += sum(line["shed_rows"].values())
        into["last_reason"] = line["reason"]
    return list(found.values())


def _by_class(run: RecordedRun, managers: LoadManager | Mapping[str, LoadManager]) -> dict[str, LoadManager]:
    classes = sorted({observation.cls for observation in run.observations})
    if isinstance(managers, Mapping):
        missing = [name for name in classes if name not in managers]
        if missing:
            raise InvalidInputError(
                "every class of a replayed run has a manager",
                f"no manager for {missing[0]}",
                "give a manager for each class",
            )
        return dict(managers)
    if len(classes) > 1:
        raise InvalidInputError(
            "a run of several classes is replayed by one manager for each class",
            ", ".join(classes),
            "give a mapping, see rebuild_managers",
        )
    return dict.fromkeys(classes, managers)


def _changes(run: RecordedRun) -> list[dict[str, Any]]:
    """Exchanges of managers since the first observation of their class that is left."""
    firsts: dict[str, int] = {}
    for observation in run.observations if run.dropped else ():
        firsts.setdefault(observation.cls, observation.id)
    return [change for change in run.changes if change["observation_id"] >= firsts.get(change["cls"], 0)]


def _applies_to(change: Mapping[str, Any], observation: Observation) -> bool:
    return bool(change["cls"] == observation.cls and change["observation_id"] <= observation.id)


def manager_now(manager: LoadManager) -> dict[str, object]:
    """A description of a manager with its state, from which `rebuild_managers` can continue."""
    assert isinstance(manager, Manager)  # what a class is configured with
    return {**describe_manager(manager), "state": manager.snapshot()}


def rebuild_managers(
    config: Mapping[str, Any],
    classes: Iterable[str],
    name: str | None = None,
    states: Mapping[str, Any] | None = None,
) -> dict[str, Manager[Any, Any]]:
    """Load managers for a replay, by class; see `rebuild_manager`.

    Args:
        config: A recorded run's configuration: several classes under `classes`, or one class.
        classes: Classes that occur in the run.
        name: `None` for the recorded managers; a name for a fresh manager of that name in every class.
        states: Results of `manager_now` by class, for a run whose beginning is missing.
    """
    recorded, states = config.get("classes", {}), states or {}
    built = {cls: rebuild_manager(states.get(cls) or recorded.get(cls, config), name) for cls in classes}
    for cls, manager in built.items():
        if name is None and cls in states:
            manager.restore(_finite(states[cls]["state"]))
    return built


def rebuild_manager(config: Mapping[str, Any], name: str | None = None) -> Manager[Any, Any]:
    """A fresh load manager for a replay.

    Args:
        config: A recorded run's configuration.
        name: `None` for the recorded manager with its settings; a name for that manager with defaults.
    """
    if name is not None:
        return _build(name, {})
    if "manager" not in config:
        raise InvalidInputError(
            "a replay needs the recorded manager",
            "a run without a manager",
            "name a manager: --manager deadline",
        )
    settings = config.get("manager_settings", {})
    if not isinstance(settings, Mapping):
        raise InvalidInputError(
            "manager_settings is a mapping", repr(settings), "record it with describe_manager"
        )
    decoded = {key: _decode(key, value) for key, value in settings.items()}
    return _build(str(config["manager"]), decoded)


def _build(name: str, settings: dict[str, Any]) -> Manager[Any, Any]:
    try:
        manager: Manager[Any, Any] = manager_config(name, **settings).build()
    except TypeError as error:
        raise InvalidInputError(
            f"recorded settings fit {name}", error, "the settings were changed by hand"
        ) from error
    return manager


def _decode(key: str, value: Any) -> Any:
    if key == "controller" and isinstance(value, Mapping):
        if set(value) != {"a", "b0", "b1"}:
            raise InvalidInputError("a controller has the gains a, b0 and b1", dict(value), "give all three")
        return Controller(**value)
    return float(value) if value in _NOT_FINITE else value


def _finite(value: Any) -> Any:
    """JSON values in which strings for infinities and NaN are numbers again."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


def _keep(decisions: list[Decision]) -> FloatArray:
    return np.array([decision.keep_fraction for decision in decisions], np.float64)


def _mean(values: FloatArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None
