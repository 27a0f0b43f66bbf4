"""Load managers: when and how much to shed. One file each, named as in its paper; `deadline` is our own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from penstock.policies.load.aloma import AlomaConfig
from penstock.policies.load.aurora import AuroraConfig
from penstock.policies.load.base import Manager, ManagerConfig
from penstock.policies.load.baseline import BaselineConfig
from penstock.policies.load.ctrl import CtrlConfig
from penstock.policies.load.deadline import DeadlineConfig
from penstock.policies.load.seamless import SeamlessConfig
from penstock.vocabulary.errors import UnknownNameError

LOAD_MANAGERS: dict[str, type[Any]] = {
    "aurora": AuroraConfig,
    "baseline": BaselineConfig,
    "ctrl": CtrlConfig,
    "seamless": SeamlessConfig,
    "aloma": AlomaConfig,
    "deadline": DeadlineConfig,
}


def manager_config(name: str, **settings: Any) -> Any:
    """The configuration of a load manager by its name; an unknown name or setting gets the nearest known."""
    if name not in LOAD_MANAGERS:
        raise UnknownNameError("manager", name, LOAD_MANAGERS)
    config_type = LOAD_MANAGERS[name]
    known = {f.name for f in fields(config_type)}
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"a setting of {name}", key, known)
    return config_type(**settings)


__all__ = ["LOAD_MANAGERS", "Manager", "ManagerConfig", "manager_config"]
