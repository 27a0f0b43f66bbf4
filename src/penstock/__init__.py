"""Penstock: overload management for Spark Structured Streaming."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.vocabulary.version import __version__

if TYPE_CHECKING:  # editors and type checkers see what `__getattr__` loads
    from penstock.spark.driver.flow import attach
    from penstock.spark.estimate import estimate, sic
    from penstock.spark.session import session
    from penstock.streams.protocol import ESTIMATE, ORIGIN

__all__ = ["ESTIMATE", "ORIGIN", "__version__", "attach", "estimate", "session", "sic"]

_HOMES = {
    "ESTIMATE": "penstock.streams.protocol",
    "ORIGIN": "penstock.streams.protocol",
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
