"""Capacity policies: which part of the capacity each class has, which query of it is next. One file each."""

from __future__ import annotations

from typing import Any

from penstock.policies.capacity.absolute import Absolute, Hybrid
from penstock.policies.capacity.base import CapacityPolicy, ClassUse
from penstock.policies.capacity.cqc import Cqc, quotas
from penstock.policies.capacity.dilos import Dilos
from penstock.policies.capacity.highest_rate import HighestRate
from penstock.policies.capacity.strict import Strict
from penstock.vocabulary.errors import UnknownNameError

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
    "CapacityPolicy",
    "ClassUse",
    "HighestRate",
    "capacity_policy",
    "quotas",
]
