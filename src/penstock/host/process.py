"""The control plane as a process: starts an engine and its server, and ends with its driver. No Spark.

`python -m penstock.host.process` reads its start-up message from standard input: one JSON line with address,
configuration and run directory. The process ends when standard input closes, so it never outlives the driver.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config.flow import FlowConfig
from penstock.control.core.engine import Engine
from penstock.control.core.status import closing_report
from penstock.control.tuning import TUNING, Tuning
from penstock.host.memory import read_costs
from penstock.host.server import LINE_BYTES, ControlServer, now
from penstock.policies.load.base import describe_manager
from penstock.record.recording import LiveRecorder
from penstock.record.replay import manager_now
from penstock.record.rundir import RunDirectory

TUNING_VARIABLE = "PENSTOCK_TUNING"
"""Environment variable with changed figures of `Tuning`, as a JSON object. Benches set it; no user need."""


async def serve(start: Mapping[str, Any], until: asyncio.StreamReader | None = None) -> None:
    """Serves a control plane until a signal, or until a stream ends.

    Args:
        start: The start-up message: address, config, run, record, memory.
        until: A stream that ends when the driver does, however the driver ends.
    """
    config = FlowConfig.from_json(start["config"])
    recorder = None
    if start.get("run"):
        managers = {name: describe_manager(cls.build_manager()) for name, cls in config.classes.items()}
        record = {**start["record"], "classes": managers}
        run = RunDirectory.create(start["run"], record, limit_bytes=config.record_bytes)
        recorder = LiveRecorder(run)
    memory = Path(start["memory"]) if start.get("memory") else None
    engine = Engine(config, now(), None if memory is None else read_costs(memory), tuning())
    if recorder is not None:
        recorder.follow(lambda: {n: manager_now(m) for n, m in engine.managers().items()})
    server = ControlServer(start["address"], engine, recorder, memory)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)

    async def watch(stream: asyncio.StreamReader) -> None:
        await stream.read()  # ends when the driver does, however it does
        server.stop()

    watching = None if until is None else asyncio.create_task(watch(until))
    try:
        await server.run()
    finally:
        if watching is not None:
            watching.cancel()
        if recorder is not None:
            recorder.finish(closing_report(engine, now()))


def tuning() -> Tuning:
    """Returns the figures of the control plane, with the changes of a bench."""
    return replace(TUNING, **json.loads(os.environ.get(TUNING_VARIABLE, "{}")))


async def _start() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if line:
        await serve(json.loads(line), reader)


def run_control(start: Mapping[str, Any]) -> None:
    """Serves a control plane in this process until SIGINT or SIGTERM."""
    _log_to_stderr()
    asyncio.run(serve(start))


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=os.environ.get("PENSTOCK_LOG", "WARNING"), format="penstock control: %(message)s"
    )


def main() -> None:
    _log_to_stderr()
    asyncio.run(_start())


if __name__ == "__main__":
    main()
