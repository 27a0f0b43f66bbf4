"""PySpark's daemon, which forks the Python workers of an executor, without one of its tracebacks.

Spark closes the line to a worker whose task it cancels: a query was stopped inside a micro-batch, or nobody
wants the rest of the rows. PySpark prints what the worker then meets, a broken pipe, as a traceback, and ends
the worker. Here the worker ends without it. What users' code raises goes to Spark by the line itself, and all
else is printed as ever.

`penstock.session` names this module in `spark.python.daemon.module`. It imports little: workers are forked.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_worker = daemon.worker


def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """Serves Spark's tasks; a line that Spark has closed ends the process."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # as PySpark's manager does after its traceback


if __name__ == "__main__":
    daemon.worker = quiet_worker
    daemon.manager()
