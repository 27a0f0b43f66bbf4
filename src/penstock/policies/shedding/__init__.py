"""Shedders: which waiting batches are kept. The load manager says how many. One file each."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from penstock.policies.shedding.balance_sic import BalanceSicConfig
from penstock.policies.shedding.base import ShedDecision, Shedder, ShedObservation, WaitingBatches
from penstock.policies.shedding.cohort import CohortConfig
from penstock.policies.shedding.cost import TupleCost, TupleCostConfig
from penstock.policies.shedding.oldest import OldestConfig
from penstock.policies.shedding.random import RandomConfig
from penstock.policies.shedding.semantic import SemanticConfig
from penstock.policies.shedding.window import WindowConfig
from penstock.vocabulary.errors import UnknownNameError

SHEDDERS: dict[str, type[Any]] = {
    "random": RandomConfig,
    "oldest": OldestConfig,
    "window": WindowConfig,
    "semantic": SemanticConfig,
    "cohort": CohortConfig,
    "balance-sic": BalanceSicConfig,
}


def shedder_config(name: str, **settings: Any) -> Any:
    """The configuration of a shedder by its name; an unknown name or setting gets the nearest known."""
    if name not in SHEDDERS:
        raise UnknownNameError("shedder", name, SHEDDERS)
    config_type = SHEDDERS[name]
    known = {f.name for f in fields(config_type)}
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"a setting of {name}", key, known)
    return config_type(**settings)


__all__ = [
    "SHEDDERS",
    "ShedDecision",
    "ShedObservation",
    "Shedder",
    "TupleCost",
    "TupleCostConfig",
    "WaitingBatches",
    "shedder_config",
]
