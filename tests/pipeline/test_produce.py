"""Producers: rows at their times, files once each, a process that ends with its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from tests.segments import headers, read
from tests.waits import until

from penstock.pipeline.feed.arrivals import TraceSchedule
from penstock.pipeline.feed.child import ProducerProcess
from penstock.pipeline.feed.process import BEAT_S, Progress, play_schedule, take_files
from penstock.pipeline.spec.load import load_pipeline
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sources import FilesSource
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.vocabulary.errors import PenstockError

SCHEMA = pa.schema([("device", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
ROWS = {"device": [1, 2], "at": ["2024-01-01T00:00:00", "2024-01-01T02:00:00+02:00"]}


class StoppingAt(threading.Event):
    """A stop event on a clock of its own: every wait moves the clock, and at the end it is set."""

    def __init__(self, now_s: float, end_s: float) -> None:
        super().__init__()
        self.now_s, self.end_s = now_s, end_s

    def wait(self, timeout: float | None = None) -> bool:
        self.now_s += timeout or 0.0
        if self.now_s >= self.end_s:
            self.set()
        return self.is_set()


def rows_of(log: EmbeddedLog) -> list[dict[str, Any]]:
    return [
        row
        for p in range(log.partitions)
        for segment in headers(log, p, 0, log.end(p))
        for row in read(log, segment).to_pylist()
    ]


def test_a_clock_that_went_back_makes_no_long_wait(tmp_path: Path) -> None:
    class GoesBack(StoppingAt):
        waits_s: ClassVar[list[float]] = []

        def wait(self, timeout: float | None = None) -> bool:
            self.waits_s.append(timeout or 0.0)
            if len(self.waits_s) == 20:
                self.now_s, self.end_s = self.now_s - 3600, self.now_s - 3599
            return super().wait(timeout)

    log = EmbeddedLog.create(tmp_path / "readings", SCHEMA, LogConfig())
    stop, due = GoesBack(1000.0, 1002.0), TraceSchedule([0.1, 0.2, 0.7], 1.0, 1.0, 1.0, loop=True)

    def make_rows(first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([np.arange(first, first + count), [None] * count], schema=SCHEMA)

    play_schedule(log, due, make_rows, "at", 1000.0, stop, Progress(), clock=lambda: stop.now_s)
    assert len(stop.waits_s) > 20
    assert max(stop.waits_s) <= BEAT_S


def test_rows_are_stamped_with_the_moment_they_were_due(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "readings", SCHEMA, LogConfig(partitions=2))
    due = TraceSchedule([0.1, 0.2, 0.7], 1.0, 1.0, 1.0, loop=False)
    stop, progress = StoppingAt(1000.0, 1010.0), Progress()

    def make_rows(first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([np.arange(first, first + count), [None] * count], schema=SCHEMA)

    play_schedule(log, due, make_rows, "at", 1000.0, stop, progress, clock=lambda: stop.now_s)
    rows = sorted(rows_of(log), key=lambda row: row["device"])
    assert [row["device"] for row in rows] == [0, 1, 2]
    assert [row["_arrival"] for row in rows] == [1000_100_000, 1000_200_000, 1000_700_000]
    assert [row["at"].timestamp() for row in rows] == [1000.1, 1000.2, 1000.7]
    assert (progress.rows, progress.batches) == (3, 3)
    assert [log.end(p) for p in range(2)] == [2, 1]


def test_rows_that_continue_a_stream_are_numbered_on(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "readings", pa.schema([("n", pa.int64())]))
    for _ in range(2):
        stop = StoppingAt(0.0, 10.0)
        due = TraceSchedule([0.0, 0.1], 1.0, 1.0, 1.0, loop=False)
        make_rows = lambda first, count: pa.record_batch({"n": np.arange(first, first + count)})  # noqa: E731
        play_schedule(log, due, make_rows, None, 0.0, stop, Progress(), clock=lambda s=stop: s.now_s)  # type: ignore[misc]
    assert [row["n"] for row in rows_of(log)] == [0, 1, 2, 3]


def write(path: Path, kind: str) -> None:
    """A file with ROWS that was finished long ago."""
    path.parent.mkdir(exist_ok=True)
    typed = pa.table({"device": ROWS["device"], "at": pa.array([1704067200] * 2, pa.timestamp("s", "UTC"))})
    if kind == "parquet":
        pq.write_table(typed.append_column("more", pa.array([1, 2])), path)
    elif kind == "arrow":
        feather.write_feather(typed, path, compression="uncompressed")
    elif kind == "json":
        lines = [json.dumps(dict(zip(ROWS, row, strict=True))) for row in zip(*ROWS.values(), strict=True)]
        path.write_text("\n".join(lines) + "\n")
    else:
        lines = [",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True)]
        path.write_text("\n".join(["device,at", *lines]) + "\n")
    os.utime(path, (1.0, 1.0))


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "arrow"])
def test_a_file_is_appended_once_however_often_the_producer_starts(tmp_path: Path, kind: str) -> None:
    log = EmbeddedLog.create(tmp_path / "readings", SCHEMA)
    write(tmp_path / "in" / f"a.{kind}", kind)
    write(tmp_path / "in" / f"_b.{kind}", kind)  # under way: left alone
    source = FilesSource(path=str(tmp_path / "in" / f"*.{kind}"))
    for _ in range(2):
        stop = StoppingAt(time.time(), time.time() + 2)
        take_files(log, source, stop, Progress(), clock=lambda s=stop: s.now_s)  # type: ignore[misc]
    rows = rows_of(log)
    assert [row["device"] for row in rows] == [1, 2]
    assert {row["at"].timestamp() for row in rows} == {1704067200.0}


def test_a_file_that_was_cut_off_half_way_is_completed(tmp_path: Path) -> None:
    from penstock.pipeline.feed.files import read_rows
    from penstock.pipeline.feed.intake import file_writer
    from penstock.streams.protocol import AppendKey

    log = EmbeddedLog.create(tmp_path / "readings", pa.schema([("n", pa.int64())]))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(200_000)}), path)
    os.utime(path, (1.0, 1.0))
    first = next(read_rows(path, "parquet", log.user_schema, "readings"))
    log.append(first, 0, AppendKey(file_writer(path), 0))
    stop = StoppingAt(time.time(), time.time() + 2)
    take_files(log, FilesSource(path=str(path)), stop, Progress(), clock=lambda: stop.now_s)
    assert [row["n"] for row in rows_of(log)] == list(range(200_000))


def test_a_file_that_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "readings", SCHEMA)
    write(tmp_path / "in" / "a.csv", "csv")
    (tmp_path / "in" / "b.csv").write_text("device,at\nx,2024-01-01\n")
    (tmp_path / "in" / "c.csv").write_text("device\n1\n")
    for name in ("b", "c"):
        os.utime(tmp_path / "in" / f"{name}.csv", (1.0, 1.0))
    stop, progress = StoppingAt(time.time(), time.time() + 2), Progress()
    source = FilesSource(path=str(tmp_path / "in" / "*.csv"))
    take_files(log, source, stop, progress, clock=lambda: stop.now_s)
    assert log.end() == 2
    assert (progress.error or "").startswith("2 files were left out; the last: ")
    assert "c.csv" in (progress.error or "")


# -- the process ----------------------------------------------------------------------------------


def pipeline(tmp_path: Path, source: Any) -> PipelineConfig:
    config = load_pipeline(
        {
            "log": str(tmp_path / "log"),
            "classes": {"gold": {"target": "2s"}},
            "streams": {"a": {"schema": {"device": "long"}, "source": source}},
            "queries": {"q": {"class": "gold", "sql": "SELECT device FROM a"}},
        }
    )
    schema = config.streams["a"].arrow_schema()
    assert schema is not None
    EmbeddedLog.create(config.log / "a", schema).close()
    return config


def test_a_process_produces_until_it_is_stopped_and_says_what_it_did(tmp_path: Path) -> None:
    config = pipeline(tmp_path, {"kind": "generator", "rate": 1000})
    producers = ProducerProcess(config)
    producers.begin(time.time() - 5)  # five seconds behind: it catches up
    log = EmbeddedLog(config.log / "a")
    until(lambda: log.end() >= 5000 or producers.errors, "five thousand rows")
    producers.stop()
    assert producers.errors == {}
    assert producers.progress["a"]["rows"] == log.end()
    assert producers.progress["a"]["late_max_s"] > 4


def test_a_second_producer_of_a_stream_is_refused_at_the_start(tmp_path: Path) -> None:
    config = pipeline(tmp_path, {"kind": "generator", "rate": 1000})
    first = ProducerProcess(config)
    with pytest.raises(PenstockError, match="a partition has one writer"):
        ProducerProcess(config)
    first.stop()


def test_a_trace_that_is_no_trace_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("one\ntwo\n")
    config = pipeline(tmp_path, {"kind": "replay", "trace": str(tmp_path / "trace.txt")})
    with pytest.raises(PenstockError, match=r"an arrival time must be a number.*trace.txt.*line 1"):
        ProducerProcess(config)


def test_a_process_that_dies_is_an_error(tmp_path: Path) -> None:
    producers = ProducerProcess(pipeline(tmp_path, {"kind": "generator", "rate": 1000}))
    producers.begin()
    producers.kill()
    assert "exit code -9" in producers.errors["producers"]
    producers.stop()


def test_a_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    config = pipeline(tmp_path, {"kind": "generator", "rate": 1000})
    script = (
        "import signal, sys; from penstock.pipeline.feed.child import ProducerProcess\n"
        "from penstock.pipeline.spec.pipeline import PipelineConfig\n"
        "p = ProducerProcess(PipelineConfig.from_json(sys.stdin.read())); p.begin()\n"
        "print('begun', flush=True); signal.pause()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(config.to_json())
    parent.stdin.close()
    assert parent.stdout.readline() == "begun\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([("device", pa.int64())]))

    def lock_is_free() -> bool:
        try:
            with EmbeddedLog(config.log / "a") as log:
                log.append(empty)
        except PenstockError:
            return False
        return True

    until(lock_is_free, "the end of a producer without its parent")
