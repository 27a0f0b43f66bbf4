"""The sources of a pipeline, in a process of their own: `python -m penstock.pipeline.feed.process`.

The first JSON line on standard input is the pipeline. The process prints `{"ready": true}` when traces are
read. A line `{"begin_s": ...}` on standard input starts the sources at that moment. The process reports its
progress, a JSON line a second. It ends when its standard input does, so that it never outlives the driver. It
imports no Spark.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from penstock.pipeline.feed.arrivals import ArrivalSchedule, schedule_of
from penstock.pipeline.feed.intake import LOOK_EVERY_S, Intake
from penstock.pipeline.feed.rows import generated_rows
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sources import FilesSource, GeneratorSource, ReplaySource
from penstock.pipeline.spec.streams import StreamConfig
from penstock.streams.columns import with_event_time
from penstock.streams.opening import open_writer
from penstock.streams.producing.synthetic import MakeRows
from penstock.streams.protocol import WritableLog
from penstock.vocabulary.errors import PenstockError

BEAT_S = 0.02
"""Time between two appends of a stream: rows that are due meanwhile are one batch."""
BATCH_ROWS = 65536
REPORT_EVERY_S = 1.0


@dataclass(slots=True)
class Progress:
    """Progress of a producer.

    Attributes:
        rows: Number of rows appended.
        late_max_s: Longest time from a row's arrival stamp until the row was in the log.
        late_sum_s: Sum over batches of the same time, for the first row of each batch.
        batches: Number of batches appended.
        done: Whether no further rows will come.
        error: Why the producer has stopped, or why the last of its files was left out, and how many were.
        left_out: Number of files that do not fit and wait for a change.
        changed: Number of files that changed after their rows were taken, so that rows are left out.
        warning: How the last such file changed, and how many did.
    """

    rows: int = 0
    late_max_s: float = 0.0
    late_sum_s: float = 0.0
    batches: int = 0
    done: bool = False
    error: str | None = None
    left_out: int = 0
    changed: int = 0
    warning: str | None = None

    def report(self) -> dict[str, Any]:
        values = asdict(self)
        total_s = values.pop("late_sum_s")
        return {**values, "late_mean_s": total_s / self.batches if self.batches else 0.0}


def produced_streams(config: PipelineConfig) -> list[str]:
    """The streams that the pipeline itself feeds."""
    kinds = ReplaySource | GeneratorSource | FilesSource
    return [name for name, stream in config.streams.items() if isinstance(stream.source, kinds)]


class Producer:
    """Feeds one stream: prepared when it is made, run in a thread."""

    def __init__(self, name: str, config: StreamConfig, directory: Path, seed: int) -> None:
        self.name, self.config, self.progress = name, config, Progress()
        self.log = open_writer(directory, config.fsync)
        nothing = pa.RecordBatch.from_pylist([], schema=self.log.user_schema)
        for partition in range(self.log.partitions):  # takes the locks now: notices another producer
            self.log.append(nothing, partition)
        self._schedule: ArrivalSchedule | None = None
        if isinstance(config.source, ReplaySource | GeneratorSource):
            self._schedule = schedule_of(config.source)
            own_seed = (seed + zlib.crc32(name.encode())) & 0x7FFFFFFF
            self._make_rows = generated_rows(self.log.user_schema, config.source.values, own_seed)

    def run(self, began_s: float, stop: threading.Event) -> None:
        """Appends until the end or `stop`; an error is kept in the progress."""
        try:
            if self._schedule is not None:
                event_time = self.config.event_time
                play_schedule(
                    self.log, self._schedule, self._make_rows, event_time, began_s, stop, self.progress
                )
            else:
                assert isinstance(self.config.source, FilesSource)
                take_files(self.log, self.config.source, stop, self.progress)
        except Exception as error:  # the parent reports it; the other streams go on
            self.progress.error = f"{error}" if isinstance(error, PenstockError) else repr(error)
        self.progress.done = True
        self.log.close()


def play_schedule(
    log: WritableLog,
    schedule: ArrivalSchedule,
    make_rows: MakeRows,
    event_time: str | None,
    began_s: float,
    stop: threading.Event,
    progress: Progress,
    clock: Callable[[], float] = time.time,
) -> None:
    """Appends rows when they are due; the arrival is the moment at which a row was due.

    Partitions take turns. Numbers of rows continue after the rows in the log, so that a stream that is
    continued does not repeat its values.
    """
    numbered = sum(log.end(p) for p in range(log.partitions))
    done, from_s = 0, 0.0
    while not stop.is_set() and not schedule.ended(done):
        now_s = clock() - began_s
        if now_s > from_s:
            times_s, from_s = schedule.between(done, from_s, now_s), now_s
            for first in range(0, times_s.size, BATCH_ROWS):
                part_s = times_s[first : first + BATCH_ROWS]
                stamps = np.rint((began_s + part_s) * 1e6).astype(np.int64)
                rows = with_event_time(make_rows(numbered + done, part_s.size), event_time, stamps)
                log.append(rows, progress.batches % log.partitions, None, stamps)
                done += part_s.size
                _appended(progress, part_s.size, clock() - began_s - float(part_s[0]))
        stop.wait(min(max(0.0, from_s + BEAT_S - (clock() - began_s)), BEAT_S))


def take_files(
    log: WritableLog,
    source: FilesSource,
    stop: threading.Event,
    progress: Progress,
    clock: Callable[[], float] = time.time,
) -> None:
    """Appends the rows of files as they appear, each row once. A file that does not fit is reported."""
    intake = Intake(log, source, lambda rows: _appended(progress, rows, 0.0), clock)
    while not stop.is_set():
        intake.look(stop)
        progress.left_out, progress.changed = len(intake.taken.left_out), len(intake.taken.changed)
        progress.error, progress.warning = intake.taken.error, intake.taken.warning
        stop.wait(LOOK_EVERY_S)


def _appended(progress: Progress, rows: int, late_s: float) -> None:
    progress.rows += rows
    progress.batches += 1
    progress.late_max_s = max(progress.late_max_s, late_s)
    progress.late_sum_s += late_s


def _lines(source: IO[str]) -> Iterator[dict[str, Any]]:
    for line in source:
        if line.strip():
            yield json.loads(line)


def _send(message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the driver has died
        print(json.dumps(message), flush=True)


def main() -> None:
    messages = _lines(sys.stdin)
    try:
        config = PipelineConfig.from_json(json.dumps(next(messages)))
        producers = [
            Producer(name, config.streams[name], config.log / name, config.seed)
            for name in produced_streams(config)
        ]
    except PenstockError as error:
        _send({"error": str(error)})
        return
    _send({"ready": True})
    begin = next(messages, None)
    if begin is None:
        return
    stop, reported = threading.Event(), threading.Event()

    def report() -> None:
        while not reported.wait(REPORT_EVERY_S):
            _send({"streams": {p.name: p.progress.report() for p in producers}})

    threads = [threading.Thread(target=p.run, args=(begin["begin_s"], stop)) for p in producers]
    reporter = threading.Thread(target=report, daemon=True)
    for thread in [*threads, reporter]:
        thread.start()
    for _ in messages:  # until standard input ends: the driver closes it, or has died
        pass
    stop.set()
    for thread in threads:
        thread.join()
    reported.set()
    reporter.join()
    _send({"streams": {p.name: p.progress.report() for p in producers}, "stopped": True})


if __name__ == "__main__":
    main()
