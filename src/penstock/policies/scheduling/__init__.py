"""Capacity: which part of it each class has, and which query of a class is next. One policy a file."""

from __future__ import annotations

from typing import Any

from penstock.errors import UnknownNameError
from penstock.policies.scheduling.absolute import Absolute, Hybrid
from penstock.policies.scheduling.base import CapacityPolicy, ClassUse
from penstock.policies.scheduling.cqc import Cqc, quotas
from penstock.policies.scheduling.dilos import Dilos
from penstock.policies.scheduling.highest_rate import Candidate, HighestRate
from penstock.policies.scheduling.strict import Strict

CAPACITY_POLICIES: dict[str, type[Any]] = {
    policy.name: policy for policy in (Cqc, Dilos, Absolute, Hybrid, Strict)
}


def capacity_policy(name: str, **settings: Any) -> CapacityPolicy:
    """A capacity policy by its name."""
    if name not in CAPACITY_POLICIES:
        raise UnknownNameError("capacity policy", name, CAPACITY_POLICIES)
    policy: CapacityPolicy = CAPACITY_POLICIES[name](**settings)
    return policy


__all__ = [
    "CAPACITY_POLICIES",
    "Candidate",
    "CapacityPolicy",
    "ClassUse",
    "HighestRate",
    "capacity_policy",
    "quotas",
]
