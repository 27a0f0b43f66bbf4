"""Penstock: overload management for Spark Structured Streaming."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What Spark applications use, loaded when used: most of Penstock needs no Spark."""
    if name in ("ORIGIN", "ESTIMATE"):
        from penstock.log import protocol

        return getattr(protocol, name)
    if name in ("estimate", "sic"):
        from penstock.spark import estimate

        return getattr(estimate, name)
    if name == "attach":
        from penstock.spark.flow import attach

        return attach
    if name == "session":
        from penstock.spark.session import session

        return session
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
