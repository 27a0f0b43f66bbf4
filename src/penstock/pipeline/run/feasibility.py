"""`penstock plan`: measures a pipeline in a folder of its own, and says what each class needs.

Queries, classes and rates are the pipeline's. Results are computed and thrown away, and streams are in a
folder that is removed: the user's log, checkpoints and sinks are not touched. A stream that another process
feeds is played back: its last rows, at the rate at which they came.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.pipeline.run.materialise import materialise_views
from penstock.pipeline.run.runner import OnStatus, run_pipeline
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sinks import LogSink, NoopSink
from penstock.pipeline.spec.sources import FilesSource, LogSource
from penstock.streams.opening import create_paced, load_stream, stream_exists
from penstock.streams.producing.recent import last_rows, rate_per_s
from penstock.streams.producing.schedule import schedule_constant
from penstock.streams.protocol import PacedStream
from penstock.vocabulary.errors import InvalidInputError, UnmetError

SAMPLE_ROWS = 65_536
SLACK_S = 60.0
"""Rows are produced for this much longer than asked, because queries start late."""


def plan_pipeline(
    config: PipelineConfig,
    seconds: float,
    on_status: OnStatus | None = None,
    on_note: Callable[[str], None] | None = None,
    *,
    base: Path | None = None,
    folder: Path | None = None,
    spark: SparkSession | None = None,
) -> dict[str, Any]:
    """Runs a pipeline for a while in a folder of its own, and returns `flow.plan()` at its end.

    Args:
        config: Result of `load_pipeline`.
        seconds: How long rows are produced.
        on_status: Called once a second.
        on_note: Called with lines for people.
        base: Directory with modules of `function:` queries.
        folder: Parent of the temporary folder, which executors must reach; by default the machine's own.
        spark: A session to use and leave running; by default a new session.

    Returns:
        The plan, with `errors` of queries and sources that failed.
    """
    config, _ = materialise_views(config, config.run or Path())  # as in a real run
    with tempfile.TemporaryDirectory(prefix="penstock-plan-", dir=folder) as place:
        apart, played = set_apart(config, Path(place), seconds + SLACK_S)

        def begin() -> None:
            for log in played:
                log.begin()

        report = run_pipeline(
            apart,
            seconds,
            run=Path(place) / "run",
            on_status=on_status,
            on_note=on_note,
            base=base,
            spark=spark,
            on_ready=begin,
        )
        for log in played:
            log.close()
    if report["plan"] is None:
        raise UnmetError("the control plane answers to the end", "silence", "run the command again")
    classes = _with_missing(report["plan"]["classes"], config)
    return {
        **report["plan"],
        "classes": classes,
        "seconds": report["seconds"],
        "errors": report["errors"],
    }


def _with_missing(classes: dict[str, Any], config: PipelineConfig) -> dict[str, Any]:
    """Adds queries that failed or never began: as they are not measured, their class may miss its target."""
    completed = dict(classes)
    for name, query in config.queries.items():
        cls = completed[query.cls]
        if name in cls["queries"] or name in cls["not_measured"]:
            continue
        says = [s for s in cls["says"] if cls["queries"] or cls["not_measured"]]
        completed[query.cls] = {
            **cls,
            "needs": None,
            "feasible": None if cls["feasible"] else cls["feasible"],
            "not_measured": [*cls["not_measured"], name],
            "says": [*says, f"query {name} is not measured: it failed or did not begin"],
        }
    return completed


def set_apart(
    config: PipelineConfig, folder: Path, seconds: float
) -> tuple[PipelineConfig, list[PacedStream]]:
    """The pipeline with log, checkpoints and sinks in a folder, and the streams to be played back."""
    written = {q.sink.stream for q in config.queries.values() if isinstance(q.sink, LogSink)}
    read = {stream for name in config.queries for stream in config.streams_of(name)}
    outer = [
        name
        for name, stream in config.streams.items()
        if isinstance(stream.source, LogSource | FilesSource) and name in read - written
    ]
    played = [_played(config, name, folder / "logs" / name, seconds) for name in outer]
    queries = {
        name: query.model_copy(
            update={
                "checkpoint": None,
                "sink": query.sink if isinstance(query.sink, LogSink) else NoopSink(),
            }
        )
        for name, query in config.queries.items()
    }
    streams = {
        name: stream.model_copy(update={"source": LogSource()}) if name in outer else stream
        for name, stream in config.streams.items()
        if name in read | written
    }
    apart = {"log": folder / "logs", "run": None, "checkpoints": None, "address": None, "read_from": None}
    return config.model_copy(update={**apart, "queries": queries, "streams": streams}), played


def _played(config: PipelineConfig, name: str, directory: Path, seconds: float) -> PacedStream:
    """A paced stream that repeats another stream's last rows at its rate."""
    place = config.log / name
    if not stream_exists(place):
        raise InvalidInputError(
            f"stream {name} is in the log: its rate and rows are taken from there",
            f"no stream at {place}",
            "feed it first, or give it a source: {kind: generator, rate: 1000}",
        )
    with load_stream(place) as log:
        rows, per_s = last_rows(log, SAMPLE_ROWS), rate_per_s(log)
        if rows.num_rows == 0 or per_s <= 0:
            raise InvalidInputError(
                f"stream {name} has rows: its rate is taken from them", "none", "feed it first"
            )
        schedule = schedule_constant(per_s / log.partitions, seconds, segment_rows=min(8192, rows.num_rows))
        return create_paced(
            directory,
            [rows],
            [schedule] * log.partitions,
            log.key_column,
            log.key_buckets,
            config.streams[name].event_time,
        )
