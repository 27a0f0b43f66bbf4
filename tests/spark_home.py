"""The home of Spark with which tests start, and the options of a JVM that lives for minutes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.spark.home import link_home

QUICK_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""A JVM of a test lives for minutes: its optimising compiler would take a third of the time and never pay.

It loads 20,000 classes of Spark and its libraries; to verify the bytecode of each takes a third of its start.
"""
PLACE = Path(".pytest_cache", "spark")
"""Where the home is, in the project: `make clean` removes it."""


def make_spark_home(root: Path) -> Path | None:
    """A home of Spark for all tests, also for those that make sessions of their own; None without Spark."""
    home = root / PLACE
    return home if link_home(home) else None


def with_own_home(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Spark starts from the home it came with, as at a user's."""
    return {name: value for name, value in environ.items() if name != "SPARK_HOME"}
