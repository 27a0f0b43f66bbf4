"""What a pipeline's queries give for what they take: selectivities, and the costs of a family's queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery

from penstock.cql.analysis.families import Family
from penstock.cql.analysis.selectivity import wanted_fractions
from penstock.cql.analysis.windowing import streams_read
from penstock.pipeline.run.settle import sample_of
from penstock.pipeline.spec.pipeline import PipelineConfig

OBSERVED = "penstock"
"""What the count of a result's rows is called among a query's observed metrics."""


def counted(result: DataFrame) -> DataFrame:
    """The same rows; Spark counts them on their way and reports it with each micro-batch."""
    return result.observe(OBSERVED, F.count(F.lit(1)).alias("rows"))


class Selectivity:
    """Rows that a query gave for each that it took, over the micro-batches that were looked at."""

    def __init__(self) -> None:
        self._batch, self._taken, self._given = -1, 0, 0

    def look(self, query: StreamingQuery) -> None:
        """Takes the query's last micro-batch in, if it is a new one."""
        last = query.lastProgress
        if last is not None:
            self.add(dict(last))

    def look_back(self, query: StreamingQuery) -> None:
        """Takes in the micro-batches since the last look, as far back as Spark remembers them."""
        for progress in query.recentProgress:
            self.add(dict(progress))

    def add(self, progress: Mapping[str, Any]) -> None:
        """Takes in what Spark reports of a micro-batch."""
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
    """What each query of a family costs: an even part of a batch, and of a row by how many rows it wants.

    Args:
        family: Which.
        fractions: From `wanted_fractions`; `None` if unknown, then each has an even part.
        fixed_s: What a micro-batch of the family costs whatever it holds.
        row_s: What each row adds.
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
    """`wanted_fractions` of the newest rows in the log; `None` if they cannot be had."""
    samples = {stream: sample_of(config, stream) for stream in streams_read(family.shape.plan)}
    known = {stream: rows for stream, rows in samples.items() if rows is not None}
    return wanted_fractions(family, known) if len(known) == len(samples) else None
