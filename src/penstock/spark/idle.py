"""Ends PySpark's idle planner processes before Spark closes their connections.

Spark asks Python about data sources in planner processes, and keeps these for the next question. When Spark
stops, it closes the connections and then kills the processes. When a process has been idle for a minute,
Spark closes its connection alone. A process that still lives then writes to the closed connection, and
PySpark prints the broken pipe as a traceback. The setting `spark.python.daemon.module` does not hold for
these processes; those that import Penstock hush themselves, see `penstock.spark.daemon`.
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
    from pyspark.sql.datasource import DataSource

_PROCESSES = Path("/proc")
_DAEMON, _TASKS = b"pyspark.daemon", b"pyspark.sql.worker."
"""Arguments of a planner's process: the module that forks, and the beginning of its task's module name."""
_LOOKUP = _TASKS + b"lookup_data_sources"
"""The task that looks for data sources among the installed packages. Spark wants it done once in its life,
when the first data source is registered."""


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Registers a data source, and ends the planner that Spark needs for that alone."""
    spark.dataSource.register(source)
    with suppress(Exception):  # the source is registered, whatever becomes of the planner
        _end_planners(spark, _LOOKUP)


def planners(jvm: int, tasks: bytes = _TASKS) -> Iterator[int]:
    """Process ids of the planners that a JVM has started; none on a system that does not list processes.

    Args:
        jvm: The process id of the JVM.
        tasks: The beginning of the module name of the planners' task.
    """
    for process in _PROCESSES.glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parent = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent != jvm:
                continue
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if any(module == _DAEMON and task.startswith(tasks) for module, task in pairwise(arguments)):
                yield int(process.name)


def end_planners_first(spark: SparkSession) -> None:
    """Lets `stop` end idle planners before Spark does; not while a query runs, which may use one."""
    context = spark.sparkContext
    stop = context.stop

    def quiet_stop() -> None:
        with suppress(Exception):  # a JVM that is gone lists no queries; the context must still be stopped
            if not spark.streams.active:
                _end_planners(spark, _TASKS)
        stop()

    context.stop = quiet_stop  # type: ignore[method-assign]


def _end_planners(spark: SparkSession, tasks: bytes) -> None:
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None:  # another process started the JVM, and its planners are not known
        return
    for planner in list(planners(process.pid, tasks)):
        with suppress(OSError):  # a planner leads a group: its forks end with it
            os.killpg(planner, signal.SIGKILL)
