"""A laboratory: makes virtual clusters and their streams in one folder, and checks their books."""

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
from penstock.sim.microbatch.cluster import VirtualCluster
from penstock.sim.microbatch.machine import Machine, TaskMachine
from penstock.sim.microbatch.query import SimulatedQuery
from penstock.streams.opening import create_paced, create_stream
from penstock.streams.producing.schedule import Schedule, schedule_constant
from penstock.streams.protocol import PacedStream, WritableLog
from penstock.vocabulary.errors import PenstockError

KEYS = 97
"""Different values of the column `sensor` of a made stream."""


class BooksError(PenstockError, AssertionError):
    """offered = admitted + shed + waiting does not hold."""


def check_books(cluster: VirtualCluster) -> None:
    """offered = admitted + shed + waiting, and offered is what the log has, or had when the query left.

    Raises:
        BooksError: It is not so.
    """
    classes = cluster.status().classes
    for query in cluster.queries.values():
        found = classes[query.cls].queries[query.key]
        _require(
            found.offered == found.admitted + found.shed + found.waiting,
            f"query {query.key}: offered = admitted + shed + waiting; got: {found}",
        )
        there = sum(log.end(p) for log in query.logs.values() for p in range(log.partitions))
        exact = found.offered <= there if query.stopped else found.offered == there
        _require(exact, f"query {query.key}: offered is what the log has, {there}; got: {found.offered}")
        ran = sum(batch.books.admitted for batch in query.batches)
        _require(found.admitted == ran, f"query {query.key}: admitted {found.admitted}, batches {ran}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise BooksError(text)


def admitted_between(query: SimulatedQuery, from_s: float, to_s: float) -> int:
    """Rows of the batches that were done between two moments."""
    return sum(b.books.admitted for b in query.batches if from_s <= b.done_s < to_s)


def delay(query: SimulatedQuery, quantile: float, from_s: float) -> float:
    """A percentile of the true delays of rows whose batch was done after a moment."""
    batches = [b for b in query.batches if b.done_s >= from_s]
    delays_s, rows = np.concatenate([b.delays_s for b in batches]), np.concatenate([b.rows for b in batches])
    order = np.argsort(delays_s)
    upto = np.cumsum(rows[order])
    return float(delays_s[order][np.searchsorted(upto, quantile * upto[-1])])


class Lab:
    """Makes configurations, paced streams and clusters in one directory.

    Args:
        folder: Where the streams lie.
    """

    machine, task_machine = Machine, TaskMachine
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
        cores: int | None = None,
        **others: Any,
    ) -> VirtualCluster:
        """A cluster with these classes; `others` are keys of a flow's configuration."""
        config = load_flow_config({"log": self.folder, "classes": dict(classes), **others})
        return VirtualCluster(config, recorder, tuning, cores)

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
