"""Penstock: overload management for Spark Structured Streaming."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.vocabulary.version import __version__

if TYPE_CHECKING:  # editors and type checkers see what `__getattr__` loads
    from penstock.spark.driver.flow import Flow, attach
    from penstock.spark.estimate import estimate, sic
    from penstock.spark.session import session
    from penstock.streams.producing.producer import Producer
    from penstock.streams.protocol import ESTIMATE, ORIGIN
    from penstock.vocabulary.errors import PenstockError
    from penstock.vocabulary.status import Status

__all__ = [
    "ESTIMATE",
    "ORIGIN",
    "Flow",
    "PenstockError",
    "Producer",
    "Status",
    "__version__",
    "attach",
    "estimate",
    "session",
    "sic",
]

_HOMES = {
    "ESTIMATE": "penstock.streams.protocol",
    "Flow": "penstock.spark.driver.flow",
    "ORIGIN": "penstock.streams.protocol",
    "PenstockError": "penstock.vocabulary.errors",
    "Producer": "penstock.streams.producing.producer",
    "Status": "penstock.vocabulary.status",
    "attach": "penstock.spark.driver.flow",
    "estimate": "penstock.spark.estimate",
    "session": "penstock.spark.session",
    "sic": "penstock.spark.estimate",
}


def __getattr__(name: str) -> object:
    """What Spark applications use, loaded when used: most of Penstock needs no Spark."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
