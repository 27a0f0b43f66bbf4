"""Changes of classes while they run: other settings, or a class taken out. All of a change, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config.flow import ClassConfig
from penstock.control.core.governor import Governor
from penstock.control.core.status import status
from penstock.control.decide.cycle import SafetyLimits
from penstock.control.state.classes import check_stream, first_scale, govern
from penstock.control.state.sharing import RUNNING
from penstock.policies.load.base import describe_manager
from penstock.vocabulary.errors import InvalidInputError


def change_class(governor: Governor, name: str, changes: Mapping[str, Any]) -> None:
    """Puts new settings of a class in force: target, priority, manager, settings, sampling, limits."""
    before = governor.governed(name)
    config = before.config.changed(changes, f"class {name}")
    _check_change(governor, name, before.config, config)
    if config.manager == before.config.manager and config.settings == before.config.settings:
        period_s = config.manager_config().period_s(config.target_s)
        settings = config.shedder_config()
        same = config.shedder == before.config.shedder and settings == before.settings
        shedder = before.shedder if same else config.build_shedder(governor.config.seed)
        governed = replace(before, config=config, period_s=period_s, shedder=shedder, settings=settings)
        governed.cycle.limits = SafetyLimits(config.min_keep_fraction)
        governed.cycle.dry_run = config.dry_run or governor.config.dry_run
    else:
        flow = governor.config
        governed = govern(name, config, before.plant, governor.recorder, flow.dry_run, flow.seed)
        if governor.recorder is not None:
            first = governed.plant.next_id
            governor.recorder.record_change(name, first, describe_manager(config.build_manager()))
        governed.plant.capacity_scale = first_scale(config, governor.capacity.claims[name])
    before.plant.cls = config.query_class(name)
    governor.classes[name] = governed
    governor.capacity.change(before.plant.cls)
    governor.divide()


def _check_change(governor: Governor, name: str, before: ClassConfig, after: ClassConfig) -> None:
    floor_s = governor.floor_s(name)
    if floor_s is not None and after.target_s < min(floor_s, before.target_s):
        raise InvalidInputError(
            f"class {name}: a target is at least the measured floor of {floor_s:.2f} s",
            f"{after.target_s:g} s",
            "a floor is two fixed costs of every query; use fewer queries or a longer target",
        )
    for key in ("shed_lane", "poison_after"):
        if getattr(before, key) != getattr(after, key):
            raise InvalidInputError(
                f"class {name}: {key} is set before its queries start",
                getattr(after, key),
                "change the configuration and restart them",
            )
    for reader in governor.readers.values():
        if governor.queries[reader.query].cls == name:
            check_stream(after, reader.log)
    governor.segments.check(governor.reads(), {**governor.priorities, name: after.priority})


def remove_class(governor: Governor, name: str) -> None:
    """Takes out a class whose queries have stopped; the others share its part, its books stay."""
    governor.governed(name)
    owned = set(governor.segments.owned(name))
    others = sorted(
        f"{Path(stream).name} (class {cls})"
        for stream, cls in governor.reads()
        if stream in owned and cls != name
    )
    running = sorted(q.name for q in governor.queries.values() if q.cls == name and q.readers)
    if others:
        raise InvalidInputError(
            f"class {name}: a class that is removed owns no segment that others read",
            ", ".join(others),
            "stop those queries first, or let a query of another class write the segment",
        )
    if running:
        raise InvalidInputError(RUNNING.format(name), ", ".join(running), "stop them first")
    if len(governor.classes) == 1:
        raise InvalidInputError(f"class {name}: a flow has at least one class", "the last", "stop the flow")
    governor.removed[name] = status(governor).classes[name]
    for query in [q for q in governor.queries.values() if q.cls == name]:
        governor.forget(query)
    del governor.classes[name]
    governor.past.forget(name)
    governor.segments.forget(name)
    governor.turns.remove(name)
    for other, scale in governor.capacity.remove(name).items():
        governor.classes[other].plant.capacity_scale *= scale
    governor.divide()
