"""Decides, when a pipeline starts, which views are computed once: by the rows in the log, and for good."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.cql.analysis.selectivity import passing_fraction
from penstock.cql.meaning.lower import stream_of
from penstock.cql.meaning.plan import Plan
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.views import Decided, Seen, decide, readers_of, with_streams
from penstock.streams.opening import load_stream, stream_exists
from penstock.streams.producing.recent import last_rows, rate_per_s
from penstock.vocabulary.errors import InvalidInputError

SAMPLE_ROWS = 2048
"""Rows of a stream that are sampled to see how many pass a condition."""


def materialise_views(config: PipelineConfig, run: Path) -> tuple[PipelineConfig, list[str]]:
    """The pipeline with views that are computed once as streams, and a line for people on each view.

    A decision holds as long as the checkpoints exist, because they continue with the streams they began with.

    Args:
        config: The pipeline.
        run: The run directory, which has the checkpoints unless they have another place.

    Raises:
        InvalidInputError: A view is to be computed once into a stream that another run has written.
    """
    once, lines = [], []
    for name in config.views:
        decided = _decide(config, name, run)
        once += [name] * decided.once
        lines.append(
            f"view {name} is computed {'once' if decided.once else 'in each query'}: {decided.reason}"
        )
    return (with_streams(config, once) if once else config), lines


def _decide(config: PipelineConfig, name: str, run: Path) -> Decided:
    writes = _has_begun(config, name, run)
    reads = writes or any(_has_begun(config, reader, run) for reader in readers_of(config, name))
    decided = decide(config, name, lambda plan: _look(config, plan), writes if reads else None)
    if not decided.once or writes or not stream_exists(config.log / name):
        return decided
    if config.views[name].computed == "auto":
        return Decided(False, f"the log has a stream {name} that another run has written")
    raise InvalidInputError(
        f"views.{name} is computed once into a new stream, or goes on from its checkpoint",
        f"a stream that another run has written at {config.log / name}",
        "set checkpoints so that runs continue, name another log, or move the stream away",
    )


def _has_begun(config: PipelineConfig, query: str, run: Path) -> bool:
    place = f"{config.checkpoints or run / 'checkpoints'}/{query}"
    if query in config.queries:
        place = config.checkpoint_of(query, run)
    return (Path(place) / "metadata").exists()


def _look(config: PipelineConfig, plan: Plan) -> Seen | None:
    stream = stream_of(plan)
    rows = sample_of(config, stream)
    fraction = None if rows is None else passing_fraction([plan], {stream: rows})
    if fraction is None:
        return None
    with load_stream(config.log / stream) as log:
        return Seen(fraction, rate_per_s(log))


def sample_of(config: PipelineConfig, stream: str) -> pa.Table | None:
    """The newest rows of a stream in the log, with its columns in order; `None` if it does not exist."""
    try:
        with load_stream(config.log / stream) as log:
            rows = last_rows(log, SAMPLE_ROWS)
    except (OSError, InvalidInputError):
        return None
    return pa.Table.from_batches([rows]).select(list(config.streams[stream].columns or ()))[:SAMPLE_ROWS]
