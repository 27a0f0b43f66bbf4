"""The shed lanes of a pipeline's query."""

from __future__ import annotations

from penstock.lanes.progress import LaneStore, find_lanes
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError


def lanes_of(config: PipelineConfig, query: str) -> list[LaneStore]:
    """The lanes of a query, one for each checkpoint it has had."""
    if query not in config.queries:
        raise UnknownNameError("a query of the pipeline", query, config.queries)
    streams = config.streams_of(query)
    if len(streams) > 1:
        raise InvalidInputError(
            "a query that is backfilled reads one stream",
            f"{query}, which reads {', '.join(streams)}",
            "rows of one stream cannot give results that a join missed; run the query again over the log",
        )
    return [store for store in find_lanes(config.log, query) if store.stream.name == streams[0]]
