"""Ends PySpark's idle planner processes before Spark closes their connections.

Spark asks Python about data sources in planner processes, and keeps these for the next question. When Spark
stops, it closes the connections and then kills the processes. A process that is not killed in time writes to
the closed connection, and PySpark prints the broken pipe as a traceback. The setting
`spark.python.daemon.module` does not hold for these processes.
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
"""Arguments of a planner's process: the module that forks, and the beginning of its task's module name."""


def planners(jvm: int) -> Iterator[int]:
    """Process ids of the planners that a JVM has started; none on a system that does not list processes."""
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
    """Lets `stop` end idle planners before Spark does; not while a query runs, which may use one."""
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)  # absent if another process started the JVM
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
