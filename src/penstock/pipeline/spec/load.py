"""Reads a pipeline from its YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config.flow import load_config
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sources import SYNTHETIC, ReplaySource
from penstock.vocabulary.errors import InvalidInputError


def load_pipeline(
    path: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> PipelineConfig:
    """The pipeline of a YAML file (or of plain values), checked as far as possible without Spark.

    Relative paths are taken from the file's directory, or else from the working directory.

    Args:
        path: The file.
        changes: Values that replace the file's, by key: {"classes.gold.target": "3s"}.
    """
    pipeline = load_config(PipelineConfig, path, "pipeline", changes or {})
    where = "the pipeline" if isinstance(path, Mapping) else str(path)
    for name, stream in pipeline.streams.items():
        source = stream.source
        if (
            isinstance(source, ReplaySource)
            and source.trace != SYNTHETIC
            and not Path(source.trace).is_file()
        ):
            raise InvalidInputError(
                f"{where}: streams.{name}.source.trace must be a file that exists",
                repr(source.trace),
                "give a file of arrival times, or synthetic",
            )
    return pipeline
