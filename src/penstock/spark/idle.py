"""PySpark's planner processes that are idle when Spark ends.

Spark asks Python about data sources in processes of their own, and keeps these for the next question. When it
stops it closes their lines and then kills them. One that is not killed in time answers the closed line, and
PySpark prints a broken pipe as a traceback. `spark.python.daemon.module` does not hold for these processes,
so they are ended before their lines are closed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROCESSES = Path("/proc")
_PLANNER = (b"pyspark.daemon", b"pyspark.sql.worker.")
"""Arguments of a planner's process: the module that forks, and what the module of its task begins with."""


def planners(jvm: int) -> Iterator[int]:
    """Process ids of the planners that a JVM has started; none where the system does not tell."""
    for process in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parent = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent != jvm:
                continue
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if any(
                module == _PLANNER[0] and task.startswith(_PLANNER[1]) for module, task in pairwise(arguments)
            ):
                yield int(process.name)


def end_planners_first(spark: SparkSession) -> None:
    """Lets `stop` end idle planners before Spark does; not while a query may use one."""
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)  # none where the JVM was there before
    stop = context.stop

    def quiet_stop() -> None:
        with suppress(
            Exception
        ):  # a JVM that is gone lists no queries, and the context must still be stopped
            if process is not None and not spark.streams.active:
                for planner in list(planners(process.pid)):
                    with suppress(OSError):  # a planner leads a group: its forks end with it
                        os.killpg(planner, signal.SIGKILL)
        stop()

    context.stop = quiet_stop  # type: ignore[method-assign]
