"""The sources of a pipeline, in a process of their own: `python -m penstock.pipeline.feed.process`.

One JSON line on standard input is the pipeline; `{"ready": true}` on standard output says that traces are
read; a line `{"begin_s": ...}` starts them at that moment. It reports what it did, a JSON line a second, and
ends when its standard input does, so that it never outlives the driver. Imports no Spark.
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

from penstock.pipeline.feed.arrivals import Due, due_times
from penstock.pipeline.feed.intake import LOOK_EVERY_S, Intake
from penstock.pipeline.feed.rows import generated_rows
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sources import FilesSource, GeneratorSource, ReplaySource
from penstock.pipeline.spec.streams import StreamConfig
from penstock.streams.columns import with_event_time
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.producing.synthetic import MakeRows
from penstock.vocabulary.errors import PenstockError

BEAT_S = 0.02
"""Between two appends of a stream: rows that are due come in batches of this."""
BATCH_ROWS = 65536
REPORT_EVERY_S = 1.0


@dataclass(slots=True)
class Progress:
    """What a producer did so far.

    Attributes:
        rows: Rows that it appended.
        late_max_s: Longest time from a row's arrival stamp to its being in the log.
        late_sum_s: Sum of it over batches, of their first row.
        batches: Batches that it appended.
        done: Whether nothing more will come.
        error: Why it has stopped, or what it left out: of several files the last, and how many they are.
        left_out: Files that do not fit and wait for a change.
        changed: Files that changed after their rows were taken, in a way that leaves rows out.
        warning: How the last of them changed, and how many they are.
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
        self.log = EmbeddedLog(directory, config.fsync)
        nothing = pa.RecordBatch.from_pylist([], schema=self.log.user_schema)
        for partition in range(self.log.partitions):  # takes the locks: another producer is said at the start
            self.log.append(nothing, partition)
        self._due: Due | None = None
        if isinstance(config.source, ReplaySource | GeneratorSource):
            self._due = due_times(config.source)
            own_seed = (seed + zlib.crc32(name.encode())) & 0x7FFFFFFF
            self._make_rows = generated_rows(self.log.user_schema, config.source.values, own_seed)

    def run(self, began_s: float, stop: threading.Event) -> None:
        """Appends until the end or `stop`; an error is kept in the progress."""
        try:
            if self._due is not None:
                play_due(
                    self.log, self._due, self._make_rows, self.config.event_time, began_s, stop, self.progress
                )
            else:
                assert isinstance(self.config.source, FilesSource)
                take_files(self.log, self.config.source, stop, self.progress)
        except Exception as error:  # said by the parent; the other streams go on
            self.progress.error = f"{error}" if isinstance(error, PenstockError) else repr(error)
        self.progress.done = True
        self.log.close()


def play_due(
    log: EmbeddedLog,
    due: Due,
    make_rows: MakeRows,
    event_time: str | None,
    began_s: float,
    stop: threading.Event,
    progress: Progress,
    clock: Callable[[], float] = time.time,
) -> None:
    """Appends rows when they are due, stamped with the moment they were due.

    Partitions take turns. Rows are numbered on from those in the log, so that a stream that is continued
    does not repeat its values.
    """
    numbered = sum(log.end(p) for p in range(log.partitions))
    done, from_s = 0, 0.0
    while not stop.is_set() and not due.ended(done):
        now_s = clock() - began_s
        if now_s > from_s:
            times_s, from_s = due.between(done, from_s, now_s), now_s
            for first in range(0, times_s.size, BATCH_ROWS):
                part_s = times_s[first : first + BATCH_ROWS]
                stamps = np.rint((began_s + part_s) * 1e6).astype(np.int64)
                rows = with_event_time(make_rows(numbered + done, part_s.size), event_time, stamps)
                log.append(rows, progress.batches % log.partitions, None, stamps)
                done += part_s.size
                _appended(progress, part_s.size, clock() - began_s - float(part_s[0]))
        stop.wait(min(max(0.0, from_s + BEAT_S - (clock() - began_s)), BEAT_S))


def take_files(
    log: EmbeddedLog,
    source: FilesSource,
    stop: threading.Event,
    progress: Progress,
    clock: Callable[[], float] = time.time,
) -> None:
    """Appends the rows of files as they appear, each once. A file that does not fit is left out and said."""
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


def _say(message: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the driver is gone
        print(json.dumps(message), flush=True)


def main() -> None:
    told = _lines(sys.stdin)
    try:
        config = PipelineConfig.from_json(json.dumps(next(told)))
        producers = [
            Producer(name, config.streams[name], config.log / name, config.seed)
            for name in produced_streams(config)
        ]
    except PenstockError as error:
        _say({"error": str(error)})
        return
    _say({"ready": True})
    begin = next(told, None)
    if begin is None:
        return
    stop, reported = threading.Event(), threading.Event()

    def report() -> None:
        while not reported.wait(REPORT_EVERY_S):
            _say({"streams": {p.name: p.progress.report() for p in producers}})

    threads = [threading.Thread(target=p.run, args=(begin["begin_s"], stop)) for p in producers]
    reporter = threading.Thread(target=report, daemon=True)
    for thread in [*threads, reporter]:
        thread.start()
    for _ in told:  # until standard input ends: the driver closes it, or is gone
        pass
    stop.set()
    for thread in threads:
        thread.join()
    reported.set()
    reporter.join()
    _say({"streams": {p.name: p.progress.report() for p in producers}, "stopped": True})


if __name__ == "__main__":
    main()
