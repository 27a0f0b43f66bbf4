"""Measures what a pipeline's query costs on Spark (a micro-batch, a row), and what that means for targets."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.backfill.query import transform_of
from penstock.calibration.capacity import find_batch_rows, probe, warm_up
from penstock.pipeline.feed.rows import generated_rows
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.spark.session import pipeline_session
from penstock.streams.opening import create_paced
from penstock.streams.producing.schedule import schedule_constant
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

SMALL_ROWS, POOL_ROWS, FILLED_S = 100, 65_536, 200.0
WARM_UP_S = 20.0


@dataclass(frozen=True, slots=True)
class SparkCalibration:
    """Costs of a query, measured on synthetic rows of its stream, ungoverned, with nothing else running.

    Attributes:
        query: The query's name.
        fixed_s: Time of a micro-batch with next to no rows.
        row_s: Time that each row adds.
        capacity_rows_per_s: Capacity in batches of half the class's target.
        batch_rows: Rows of such a batch.
        headroom: Fraction of the time in which a batch runs if there is always work; give it to managers that
            need a headroom.
        floor_s: The least target that the query could meet alone: two batches of twice the fixed cost.
        target_s: A target at which the fixed cost matters little: eight times the fixed cost.
    """

    query: str
    fixed_s: float
    row_s: float
    capacity_rows_per_s: float
    batch_rows: float
    headroom: float
    floor_s: float
    target_s: float


def calibrate_query(
    config: PipelineConfig,
    name: str | None = None,
    warm_up_s: float = WARM_UP_S,
    spark: SparkSession | None = None,
) -> SparkCalibration:
    """Measures one query of a pipeline, which reads one stream with a schema in the pipeline.

    Args:
        config: Result of `load_pipeline`.
        name: The query; by default the only one.
        warm_up_s: How long the query runs before it is measured.
        spark: A session to use and leave running; by default a new session.
    """
    chosen = _choose(config, name)
    (stream,) = config.streams_of(chosen)
    spec = config.streams[stream]
    schema = spec.arrow_schema()
    if schema is None:
        raise InvalidInputError(
            f"stream {stream} has a schema in the pipeline", "no schema", f"add streams.{stream}.schema"
        )
    folder = Path(tempfile.mkdtemp(prefix="penstock-calibrate-"))
    own = spark is None
    spark = spark or pipeline_session(config.spark, "penstock calibrate")
    try:
        values = getattr(spec.source, "values", {})
        pool = generated_rows(schema, values)(0, POOL_ROWS)
        rate_per_s = 1e6
        log = create_paced(
            folder / "filled", [pool], schedule_constant(rate_per_s, FILLED_S), event_time=spec.event_time
        )
        log.begin(time.time() - log.seconds - 1)
        transform = transform_of(spark, config, chosen)

        def start(rows: DataFrame, checkpoint: str) -> StreamingQuery:
            if spec.event_time is not None:
                rows = rows.withWatermark(spec.event_time, f"{round(spec.lateness_s * 1000)} milliseconds")
            writer = transform(rows).writeStream.format("noop").outputMode(config.queries[chosen].mode)
            return writer.option("checkpointLocation", checkpoint).start()

        probed, metadata = (spark, log.ref.id, start), config.queries[chosen].metadata
        per_s = warm_up(*probed, folder / "warm", warm_up_s, metadata=metadata)
        small = probe(*probed, folder / "small", SMALL_ROWS, 8, metadata)
        length_s = max(config.classes[config.queries[chosen].cls].target_s, 8 * small.batch_s) / 2
        first = max(1000, round(per_s * length_s))
        large = find_batch_rows(*probed, folder / "large", length_s, first, tries=4, metadata=metadata)
    finally:
        if own:
            spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return SparkCalibration(
        query=chosen,
        fixed_s=small.batch_s,
        row_s=max(0.0, large.batch_s - small.batch_s) / large.batch_rows,
        capacity_rows_per_s=large.rows_per_s,
        batch_rows=large.batch_rows,
        headroom=large.busy_fraction,
        floor_s=4 * small.batch_s,
        target_s=8 * small.batch_s,
    )


def _choose(config: PipelineConfig, name: str | None) -> str:
    if name is None:
        if len(config.queries) != 1:
            raise InvalidInputError(
                "one query is calibrated at a time", ", ".join(config.queries), "name one: --query"
            )
        name = next(iter(config.queries))
    if name not in config.queries:
        raise UnknownNameError("query", name, config.queries)
    if len(config.streams_of(name)) != 1:
        raise InvalidInputError(
            "a calibrated query reads one stream",
            f"{name} reads {', '.join(config.streams_of(name))}",
            "calibrate a query of one stream; costs of other queries are learned while they run",
        )
    return name
