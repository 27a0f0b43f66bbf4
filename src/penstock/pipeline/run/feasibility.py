"""`penstock plan`: measures a pipeline in a place of its own, and says what each class needs.

Queries, classes and rates are the pipeline's. Results are computed and thrown away, and streams lie in a
folder that is removed: nothing of the user's log, checkpoints or sinks is touched. A stream that others feed
is played back: its last rows, at the rate at which they came.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.pipeline.run.runner import OnStatus, run_pipeline
from penstock.pipeline.run.settle import settle_views
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sinks import LogSink, NoopSink
from penstock.pipeline.spec.sources import FilesSource, LogSource
from penstock.streams.opening import load_stream
from penstock.streams.paced.schedule import schedule_constant
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.recent import last_rows, rate_per_s
from penstock.vocabulary.errors import InvalidInputError, UnmetError

SAMPLE_ROWS = 65_536
SLACK_S = 60.0
"""Rows are there for longer than asked: queries start late."""


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
    """Runs a pipeline for a while beside everything, and returns `flow.plan()` of its end.

    Args:
        config: From `load_pipeline`.
        seconds: How long rows are produced.
        on_status: Called once a second.
        on_note: Gets lines for people.
        base: Where modules of `function:` queries lie.
        folder: Where the streams lie meanwhile; executors must reach it. The machine's own by default.
        spark: A session to use and leave running; one of its own by default.

    Returns:
        The plan, with `errors` of queries and sources that failed.
    """
    config, _ = settle_views(config, config.run or Path())  # as they are settled where it really runs
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
        raise UnmetError("the control plane answers to the end", "silence", "try it again")
    classes = _with_missing(report["plan"]["classes"], config)
    return {
        **report["plan"],
        "classes": classes,
        "seconds": report["seconds"],
        "errors": report["errors"],
    }


def _with_missing(classes: dict[str, Any], config: PipelineConfig) -> dict[str, Any]:
    """A query that failed or never began is not measured, and its class's target not known to hold."""
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


def set_apart(config: PipelineConfig, folder: Path, seconds: float) -> tuple[PipelineConfig, list[PacedLog]]:
    """The pipeline with log, checkpoints and sinks in a folder, and its outer streams to be played back."""
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


def _played(config: PipelineConfig, name: str, directory: Path, seconds: float) -> PacedLog:
    """A stream's last rows over and over, at its rate."""
    place = config.log / name
    if not (place / "stream.json").exists():
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
