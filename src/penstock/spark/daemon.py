"""PySpark's daemon, which forks the Python workers of an executor: workers start quickly, and end quietly.

PySpark's daemon imports little, and each worker imports PySpark's worker, pandas and pyarrow anew. That costs
a worker 0.3 s of CPU time, and a micro-batch on sixteen cores starts thirty workers. This daemon
imports them once; workers share what it imported. PySpark does not do so because a process with threads must
not fork, and such packages may start threads when they are imported. So this daemon counts its threads after
the imports. If there is more than one, it begins again without the imports.

PySpark's workers collect garbage after each task, and look through all that was ever imported: 27 ms of CPU
time a task, far more than a short task needs for its rows. Here what was imported is frozen, in the daemon
and again in a worker whose task has imported more. A collection then takes half a millisecond.

Spark closes the connection to a worker whose task it cancels: a query was stopped inside a micro-batch, or
nobody wants the rest of the rows. It also closes connections of workers that have been idle for a minute. The
worker then gets a broken pipe. PySpark prints it as a traceback and ends the worker; a quiet worker only
ends. Errors of users' code go to Spark through the connection, and all other errors are printed as ever.

`penstock.session` names this module in `spark.python.daemon.module`. Spark starts the planners, in which it
asks Python about data sources, with its own daemon whatever that setting says. A planner that imports
Penstock becomes quiet by `hush`.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

_DAEMON = "pyspark.daemon"
PRELOADED = ("pyspark.worker", "pandas", "pyarrow.compute", "penstock.spark.source.tasks")
"""Modules that nearly every worker of a governed query needs, with all that they import."""
PRELOAD_VARIABLE = "PENSTOCK_PRELOAD"
"""Environment variable: 0 keeps the daemon from importing anything for its workers."""
_THREADS = Path("/proc/self/task")
ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""Environment variable with the settings of pyarrow's allocator."""

Worker = Callable[[socket.socket, bool], int]


def quiet(worker: Worker) -> Worker:
    """A worker that serves Spark's tasks as another does, and ends if Spark has closed the connection."""
    frozen = _Frozen()

    def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            code = worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # as PySpark's manager does after its traceback
        frozen.look()
        return code

    return quiet_worker


class _Frozen:
    """Freezes what this process has imported, so that collections of garbage need not look through it."""

    def __init__(self) -> None:
        self._modules = 0

    def look(self) -> None:
        """Freezes what is alive, if modules were imported since the last time; garbage goes before."""
        if len(sys.modules) > self._modules:
            self._modules = len(sys.modules)
            gc.collect()
            gc.freeze()


def hush(main: ModuleType) -> None:
    """Makes this process quiet from its next task on, if PySpark's own daemon forked it.

    Args:
        main: The module that the process runs. The daemon looks its `worker` up anew for each task.
    """
    if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
        main.worker = quiet(main.worker)  # type: ignore[attr-defined]


def preload(modules: Sequence[str] = PRELOADED) -> bool:
    """Imports modules for the workers; returns whether this process may still fork.

    Nothing is imported where threads cannot be counted, or if `PENSTOCK_PRELOAD` is 0. A module that cannot
    be imported here is imported, or missed, by the worker that needs it.
    """
    if os.environ.get(PRELOAD_VARIABLE) == "0" or not _THREADS.is_dir():
        return True
    with _one_thread():
        for name in modules:
            with suppress(Exception):
                importlib.import_module(name)
    _Frozen().look()
    return len(list(_THREADS.iterdir())) == 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps pyarrow from starting a thread that gives memory back; later children have their own choice."""
    before = os.environ.get(ALLOCATOR)
    os.environ[ALLOCATOR] = "background_thread:false"
    try:
        yield
    finally:
        del os.environ[ALLOCATOR]
        if before is not None:
            os.environ[ALLOCATOR] = before


def begin_again() -> None:
    """Replaces this process by a daemon that imports nothing for its workers."""
    os.environ[PRELOAD_VARIABLE] = "0"
    os.execv(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]])


if __name__ == "__main__":
    from pyspark import daemon

    if not preload():
        begin_again()
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
