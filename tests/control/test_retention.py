"""Trimming behind the slowest registered reader, by whoever hosts the control plane, now and then."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.host.retention import EVERY_S
from penstock.sim.microbatch import Lab
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.registry import ReaderRegistry

GOLD = {"gold": {"target": "2s"}}


def filled(folder: Path) -> EmbeddedLog:
    config = LogConfig(partitions=2, segment_rows=50, file_bytes=1000)
    log = EmbeddedLog.create(folder / "readings", pa.schema([("v", pa.int64())]), config)
    for _ in range(10):
        for p in (0, 1):
            log.append(pa.record_batch({"v": list(range(100))}), p)
    return log


def starts(log: EmbeddedLog) -> list[int]:
    return [log.start(p) for p in (0, 1)]


def test_rows_that_every_registered_reader_is_past_go_and_no_others(virtual: Lab) -> None:
    cluster = virtual(GOLD, trim=True)
    with filled(virtual.folder) as log:
        cluster.add("a", "gold", log)
        cluster.run(EVERY_S)
        assert starts(log) == [0, 0], "nobody is registered: nothing is known of who needs what"
        registry = ReaderRegistry(log)
        registry.advance("a", {0: 800, 1: 300})
        registry.advance("b", {0: 450, 1: 1000})
        cluster.run(EVERY_S / 2)
        assert starts(log) == [0, 0], "not at every moment"
        cluster.run(EVERY_S / 2)
        assert 300 < starts(log)[0] <= 450
        assert 200 < starts(log)[1] <= 300
        registry.forget("b")
        registry.advance("a", {0: 800, 1: 300}, pinned={0: 500})
        cluster.run(EVERY_S)
        assert 400 < starts(log)[0] <= 500, "what a shed lane pins stays"
        assert log.end(0) == 1000


@pytest.mark.parametrize("joined", [True, False])
def test_without_being_asked_to_or_without_readers_nothing_is_trimmed(virtual: Lab, joined: bool) -> None:
    cluster = virtual(GOLD, trim=not joined)
    with filled(virtual.folder) as log:
        if joined:
            cluster.add("a", "gold", log)
        ReaderRegistry(log).advance("a", {0: 800, 1: 800})
        cluster.run(2 * EVERY_S)
        assert starts(log) == [0, 0]
