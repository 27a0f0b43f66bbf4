"""PySpark's daemon, which forks the Python workers of an executor, without one of its tracebacks.

Spark closes the connection to a worker whose task it cancels: a query was stopped inside a micro-batch, or
nobody wants the rest of the rows. It also closes connections of workers that have been idle for a minute. The
worker then gets a broken pipe. PySpark prints it as a traceback and ends the worker; a quiet worker only
ends. Errors of users' code go to Spark through the connection, and all other errors are printed as ever.

`penstock.session` names this module in `spark.python.daemon.module`. Spark starts the planners, in which it
asks Python about data sources, with its own daemon whatever that setting says. A planner that imports
Penstock becomes quiet by `hush`. This module imports little: workers are forked.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import ModuleType

_DAEMON = "pyspark.daemon"

Worker = Callable[[socket.socket, bool], int]


def quiet(worker: Worker) -> Worker:
    """A worker that serves Spark's tasks as another does, and ends if Spark has closed the connection."""

    def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # as PySpark's manager does after its traceback

    return quiet_worker


def hush(main: ModuleType) -> None:
    """Makes this process quiet from its next task on, if PySpark's own daemon forked it.

    Args:
        main: The module that the process runs. The daemon looks its `worker` up anew for each task.
    """
    if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
        main.worker = quiet(main.worker)  # type: ignore[attr-defined]


if __name__ == "__main__":
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
