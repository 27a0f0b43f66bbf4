"""A simulated federation: autonomous nodes, queries in fragments, coordinators, failures; in virtual time."""

from __future__ import annotations

from penstock.sim.federation import placement
from penstock.sim.federation.engine import Federation, FederationConfig, FederationResult
from penstock.sim.federation.layout import (
    AVG,
    AVG_ALL,
    COMPLEX,
    COV,
    TOP_5,
    Layout,
    QueryKind,
    QuerySpec,
    mixed,
)
from penstock.sim.federation.outages import Outage
from penstock.sim.federation.sources import Bursts

__all__ = [
    "AVG",
    "AVG_ALL",
    "COMPLEX",
    "COV",
    "TOP_5",
    "Bursts",
    "Federation",
    "FederationConfig",
    "FederationResult",
    "Layout",
    "Outage",
    "QueryKind",
    "QuerySpec",
    "mixed",
    "placement",
]
