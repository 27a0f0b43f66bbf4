"""`spark:` of a pipeline: the Spark that its queries run on."""

from __future__ import annotations

from pydantic import Field

from penstock.config.mistakes import Part


class SparkConfig(Part):
    """The Spark that a pipeline's queries run on; see `penstock.session`."""

    master: str = Field("local[*]", description="where Spark runs, e.g. local[4] or spark://head:7077")
    cores: int | None = Field(None, ge=1, description="cores of local[*], or of the whole cluster")
    memory: str = Field("2g", description="the driver's heap, e.g. 4g; in local mode all of Spark's")
    settings: dict[str, str | int | float | bool] = Field(
        {}, description="{spark.sql.shuffle.partitions: 8}; they win over Penstock's"
    )
