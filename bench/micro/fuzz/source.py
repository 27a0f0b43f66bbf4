"""The real governed source, as Spark's runner drives it, on the virtual cluster."""

from __future__ import annotations

import json
import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.grants.offset import Offset
from penstock.sim.microbatch import Pause, Planned, Waits
from penstock.spark.source.data_source import PenstockStreamReader
from penstock.spark.source.link import ControlLink
from penstock.spark.source.options import SourceOptions
from penstock.streams.protocol import ARRIVAL

from .wire import Held, Wire, WireClient

if TYPE_CHECKING:
    from .world import World

METADATA = (ARRIVAL, "_position", "_seq", "_sic", "_weight", "_kept", "_drawn")


class RealSource:
    """A `PenstockStreamReader` in place of a planner process: JSON in, JSON out.

    Args:
        world: Is told what each batch reads.
        wire: To the control plane.
        options: Of the source.
        available_now: Whether it ends at the log's present end.
    """

    def __init__(self, world: World, wire: Wire, options: SourceOptions, available_now: bool) -> None:
        self.world, self.options = world, options
        self.reader = PenstockStreamReader(options)
        hook = sys.excepthook
        planner = self.reader._plan()
        sys.excepthook = hook  # a planner takes it for its process, which this is not
        self.client = WireClient(wire)
        planner._link = ControlLink(options, world.cluster.timer, _pause)
        planner._link._client = self.client  # type: ignore[assignment]
        self._available_now = available_now
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self._done: Offset | None = None
        self._before: dict[str, Any] = {}
        """Where the next batch begins; a process that begins with a batch which runs again is not told."""

    def connect(self, offset: Offset) -> None:
        """It joins with its first question."""

    def latest(self, start: Offset) -> Waits[Offset | None]:
        encoded = self._before = _json(start.to_json())
        while True:
            try:
                found = _json(self.reader.latestOffset(encoded, ReadMaxRows(sys.maxsize)))
            except Held as held:
                yield Pause(held.seconds, held.held)
                if held.held or self._available_now:
                    continue
                return None  # it waited for a control plane that is silent, and has nothing new
            return None if found == encoded else Offset.from_json(found)

    def plan(self, offset: Offset) -> Waits[Planned]:
        encoded = _json(offset.to_json())
        if self._done is not None:  # Spark commits a batch once it has logged the next
            self.reader.commit(_json(self._done.to_json()))
            self._done = None
        while True:
            try:
                tasks = self.reader.partitions(self._before, encoded)
                break
            except Held as held:
                yield Pause(held.seconds, held.held)
        batches = [b for t in tasks for b in self.reader.read(pickle.loads(pickle.dumps(t)))]
        rows = pa.Table.from_batches(batches) if batches else None
        ids = self.world.ran(offset, rows)
        if rows is None:
            return Planned(0)
        arrival_s = rows.column(ARRIVAL).cast(pa.int64()).to_numpy() / 1e6
        return Planned(ids, arrival_s, np.ones(arrival_s.size))

    def commit(self, offset: Offset) -> None:
        self._done = offset

    def lose(self) -> None:
        self.client.lose()

    def close(self) -> None:
        self.reader.stop()


def _pause(seconds: float) -> None:
    raise Held(seconds, held=False)


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps an offset: as text."""
    decoded: dict[str, Any] = json.loads(json.dumps(value))
    return decoded
