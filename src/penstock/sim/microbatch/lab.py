"""A laboratory: makes virtual clusters and their streams in one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.config.flow import load_flow_config
from penstock.control.tuning import TUNING, Tuning
from penstock.host.recorder import RunRecorder
from penstock.sim.microbatch.books import admitted_between, check_books, delay
from penstock.sim.microbatch.cluster import VirtualCluster
from penstock.sim.microbatch.machine import Machine
from penstock.streams.opening import create_paced, create_stream
from penstock.streams.producing.schedule import Schedule, schedule_constant
from penstock.streams.protocol import PacedStream, WritableLog

KEYS = 97
"""Different values of the column `sensor` of a made stream."""


class Lab:
    """Makes configurations, paced streams and clusters in one directory.

    Args:
        folder: Where the streams lie.
    """

    machine = Machine
    admitted_between, delay = staticmethod(admitted_between), staticmethod(delay)
    check_books = staticmethod(check_books)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._streams = 0
        self.open = ExitStack()
        """Logs that somebody writes to: closed at the end, or the garbage collector complains elsewhere."""

    def __call__(
        self,
        classes: Mapping[str, Mapping[str, Any]],
        recorder: RunRecorder | None = None,
        tuning: Tuning = TUNING,
        **others: Any,
    ) -> VirtualCluster:
        """A cluster with these classes; `others` are keys of a flow's configuration."""
        config = load_flow_config({"log": self.folder, "classes": dict(classes), **others})
        return VirtualCluster(config, recorder, tuning)

    def stream(
        self,
        cluster: VirtualCluster,
        schedule: Schedule | Sequence[Schedule] | float,
        seconds: float = 120.0,
        key: str | None = None,
        begin: bool = True,
        skew_s: float = 0.0,
    ) -> PacedStream:
        """A paced stream on the cluster's clock.

        Args:
            cluster: Whose clock it follows.
            schedule: One, one for each partition, or a rate in rows a second.
            seconds: How long it is at a rate.
            key: `sensor`, or none.
            begin: Whether it begins now.
            skew_s: How far the clock that stamps its rows is ahead of the cluster's.
        """
        if isinstance(schedule, float | int):
            schedule = schedule_constant(schedule, seconds)
        schedules = [schedule] if isinstance(schedule, Schedule) else list(schedule)
        self._streams += 1
        size = max(int(s.rows.max()) for s in schedules if s.rows.size)
        pool = pa.record_batch({"value": np.arange(size), "sensor": [f"s{i % KEYS}" for i in range(size)]})
        log = create_paced(
            self.folder / f"stream{self._streams}",
            [pool],
            schedules,
            key=key,
            clock=(lambda: cluster.clock() + skew_s) if skew_s else cluster.clock,
        )
        if begin:
            log.begin()
        return log

    def shared_stream(self, cluster: VirtualCluster, cls: str, writer: str) -> WritableLog:
        """A shared stream of a class that a query writes."""
        schema = pa.schema([("value", pa.int64())])
        log = self.open.enter_context(
            create_stream(self.folder / f"by_{writer}", schema, clock=cluster.clock)
        )
        query = cluster.queries[writer]
        cluster.share(log, cls, [line.joining.token for line in query.lines.values()])
        query.writes = log
        return log
