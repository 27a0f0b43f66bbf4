"""Spark benches: what governing costs, and what it brings when the input exceeds the capacity."""

from __future__ import annotations

from .cluster import cluster
from .coverage import coverage
from .crash import replay_crash
from .dilos import dilos
from .drop_cost import drop_cost
from .fairness import fairness
from .goodput import goodput
from .overhead import overhead
from .sharing import background, managers, shares
from .wide import wide

__all__ = [
    "background",
    "cluster",
    "coverage",
    "dilos",
    "drop_cost",
    "fairness",
    "goodput",
    "managers",
    "overhead",
    "replay_crash",
    "shares",
    "wide",
]
