"""Penstock: overload management for Spark Structured Streaming."""

from typing import Any

from penstock.vocabulary.version import __version__ as __version__


def __getattr__(name: str) -> Any:
    """What Spark applications use, loaded when used: most of Penstock needs no Spark."""
    if name in ("ORIGIN", "ESTIMATE"):
        from penstock.streams import protocol

        return getattr(protocol, name)
    if name in ("estimate", "sic"):
        from penstock.spark import estimate

        return getattr(estimate, name)
    if name == "attach":
        from penstock.spark.driver.flow import attach

        return attach
    if name == "session":
        from penstock.spark.session import session

        return session
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
