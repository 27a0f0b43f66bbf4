"""Selectivities of a pipeline's queries, and costs of a family's queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery

from penstock.cql.analysis.families import Family
from penstock.cql.analysis.selectivity import wanted_fractions
from penstock.cql.analysis.windowing import streams_read
from penstock.pipeline.run.materialise import sample_of
from penstock.pipeline.spec.pipeline import PipelineConfig

OBSERVED = "penstock"
"""Name of the count of a result's rows among a query's observed metrics."""


def counted(result: DataFrame) -> DataFrame:
    """The same rows, which Spark counts; it reports the count with each micro-batch."""
    return result.observe(OBSERVED, F.count(F.lit(1)).alias("rows"))


class Selectivity:
    """Rows out for each row in, over the micro-batches of a query that were looked at."""

    def __init__(self) -> None:
        self._batch, self._taken, self._given = -1, 0, 0

    def look(self, query: StreamingQuery) -> None:
        """Adds the query's last micro-batch, if it is new."""
        last = query.lastProgress
        if last is not None:
            self.add(dict(last))

    def look_back(self, query: StreamingQuery) -> None:
        """Adds the micro-batches since the last look, as far back as Spark remembers them."""
        for progress in query.recentProgress:
            self.add(dict(progress))

    def add(self, progress: Mapping[str, Any]) -> None:
        """Adds a micro-batch, by Spark's report on it."""
        observed = (progress.get("observedMetrics") or {}).get(OBSERVED)
        if observed is None or progress["batchId"] <= self._batch:
            return
        self._batch = progress["batchId"]
        self._taken += progress["numInputRows"]
        self._given += observed["rows"]

    @property
    def fraction(self) -> float | None:
        return self._given / self._taken if self._taken else None


def family_costs(
    family: Family, fractions: Mapping[str, float] | None, fixed_s: float | None, row_s: float | None
) -> dict[str, dict[str, float | None]]:
    """Cost of each query of a family: an equal part of a batch's cost, and a part of a row's cost.

    The part of a row's cost is proportional to the rows that the query wants.

    Args:
        family: The family.
        fractions: Result of `wanted_fractions`; `None` if unknown, then all queries have equal parts.
        fixed_s: Cost of a micro-batch of the family whatever it holds.
        row_s: Cost of each row.
    """
    count = len(family.members)
    total = 0.0 if fractions is None else sum(fractions.values())
    found: dict[str, dict[str, float | None]] = {}
    for name in family.members:
        wanted = None if fractions is None else fractions.get(name)
        part = 1 / count if wanted is None or not total else wanted / total
        found[name] = {
            "selectivity": wanted,
            "fixed_s": None if fixed_s is None else fixed_s / count,
            "row_s": None if row_s is None else row_s * part,
        }
    return found


def sampled_fractions(config: PipelineConfig, family: Family) -> dict[str, float] | None:
    """`wanted_fractions` of the newest rows in the log; `None` if the log has no such rows."""
    samples = {stream: sample_of(config, stream) for stream in streams_read(family.shape.plan)}
    known = {stream: rows for stream, rows in samples.items() if rows is not None}
    return wanted_fractions(family, known) if len(known) == len(samples) else None
