"""Reads a stream as plain Structured Streaming does, for probes, comparisons and bounded queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.idle import register_source
from penstock.spark.source.data_source import PenstockSource
from penstock.spark.source.metadata import metadata_columns
from penstock.spark.source.options import FORMAT_NAME, SourceOptions

Metadata = bool | Sequence[str]
"""Metadata columns that a query needs, as in `flow.read_stream`."""


def read_ungoverned(
    spark: SparkSession,
    stream: str | Path,
    max_rows: int = 0,
    total_rows: int = 0,
    metadata: Metadata = False,
    divided: bool = False,
) -> DataFrame:
    """A stream as plain Structured Streaming reads it.

    Args:
        spark: The session.
        stream: The stream's directory.
        max_rows: Most rows of a batch; 0 for all that wait.
        total_rows: Rows after which the source ends; 0 for never.
        metadata: Metadata columns to add.
        divided: Whether each batch is divided into as many tasks as there are cores, however few rows they
            have: rows may cost milliseconds.
    """
    register_source(spark, PenstockSource)
    options = SourceOptions(
        stream=str(stream),
        read_from=str(stream),
        metadata=metadata_columns(metadata),
        tasks=spark.sparkContext.defaultParallelism,
        divided=divided,
        max_rows=max_rows,
        total_rows=total_rows,
    )
    return spark.readStream.format(FORMAT_NAME).option("penstock", options.to_option()).load()
