"""Checks whether a flow's configuration can hold at a control plane that it shares with other flows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from penstock.config.flow import FlowConfig
from penstock.host.client import ControlSilentError
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

_log = logging.getLogger(__name__)

_OF_THE_PLANE = ("capacity", "slots", "trim", "seed", "run", "record_mb")
"""Settings of the control plane alone, beside those of classes."""
_OF_THE_DRIVER = ("shed_lane", "poison_after")
"""Settings of a class that the driver gives to its sources."""


def check_shared(config: FlowConfig, request: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    """Refuses a configuration that would not hold at a shared control plane; warns of settings that differ.

    Args:
        config: The flow's own configuration.
        request: Sends a message to the control plane.
    """
    try:
        theirs = FlowConfig.from_json(request({"op": "config"})["config"])
    except ControlSilentError as error:  # every query would be ungoverned, with nothing but a warning
        raise InvalidInputError(
            "the control plane at `address` runs before a flow is attached to it",
            f"{config.address}: {error}",
            "start it with `penstock control serve`, or leave out `address`",
        ) from None
    for name in config.classes:
        if name not in theirs.classes:
            raise UnknownNameError("class of the shared control plane", name, theirs.classes)
        if config.is_dry(name) and not theirs.is_dry(name):
            raise InvalidInputError(
                "dry_run is a setting of the shared control plane",
                f"class {name} sheds at {config.address}",
                f"penstock control change {config.address} {name} dry_run=true, or leave out `address`",
            )
    if differ := _differences(config, theirs):
        _log.warning(
            "the shared control plane at %s has its own settings, and they hold: %s",
            config.address,
            ", ".join(differ),
        )


def _differences(mine: FlowConfig, theirs: FlowConfig) -> list[str]:
    found = [
        f"{key} {_shown(getattr(theirs, key))} (not {_shown(getattr(mine, key))})"
        for key in _OF_THE_PLANE
        if key in mine.model_fields_set and getattr(mine, key) != getattr(theirs, key)
    ]
    for name, cls in mine.classes.items():
        other = theirs.classes[name]
        for key in sorted(cls.model_fields_set - set(_OF_THE_DRIVER)):
            if getattr(cls, key) != getattr(other, key):
                found.append(f"{name}.{key} {_shown(getattr(other, key))} (not {_shown(getattr(cls, key))})")
    return found


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
