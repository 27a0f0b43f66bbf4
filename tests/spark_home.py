"""A home of Spark whose processes start quickly.

Spark names `python/lib/pyspark.zip` of its home first in the path of all Python processes that it starts. The
file holds no compiled code: each process compiles PySpark again. That takes a second of CPU, and tests start
hundreds of such processes. In a home without the file they import the installed PySpark, which is the same.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

QUICK_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""A JVM of a test lives for minutes: its optimising compiler would take a third of the time and never pay.

It loads 20,000 classes of Spark and its libraries; to verify the bytecode of each takes a third of its start.
"""
PLACE = Path(".pytest_cache", "spark")
"""Where the home is, in the project: `make clean` removes it."""
NEEDED = ("bin", "jars")


def make_spark_home(root: Path) -> Path | None:
    """Links to the installed Spark, without its zipped Python; None if Spark is not installed."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    home = root / PLACE
    home.mkdir(parents=True, exist_ok=True)
    for name in NEEDED:
        target, link = Path(found.origin).parent / name, home / name
        if not link.is_symlink() or link.readlink() != target:
            beside = home / f"{name}.{os.getpid()}"
            with suppress(FileExistsError):
                beside.symlink_to(target)
            beside.replace(link)  # at once: another run of the tests may use it
    return home


def with_own_home(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Spark starts from the home it came with, as at a user's."""
    return {name: value for name, value in environ.items() if name != "SPARK_HOME"}
