"""PySpark's daemon, which forks the Python workers of an executor, without one of its tracebacks.

Spark closes the connection to a worker whose task it cancels: a query was stopped inside a micro-batch, or
nobody wants the rest of the rows. The worker then gets a broken pipe. PySpark prints it as a traceback and
ends the worker; this daemon only ends the worker. Errors of users' code go to Spark through the connection,
and all other errors are printed as ever.

`penstock.session` names this module in `spark.python.daemon.module`. It imports little: workers are forked.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_worker = daemon.worker


def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """Serves Spark's tasks; ends the process if Spark has closed the connection."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # as PySpark's manager does after its traceback


if __name__ == "__main__":
    daemon.worker = quiet_worker
    daemon.manager()
