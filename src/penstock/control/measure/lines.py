"""Lines of a run's record that the control plane writes, beside the decisions of load managers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SicLine:
    """A line of `sic.jsonl`: the SIC of a micro-batch that ended, and of the source time window then.

    Attributes:
        now_s: Time of the wall clock at which the batch ended.
        cls: The class of the query.
        query: The query's name.
        key: The query's key.
        grants: By reader with a part in the batch, the number of its grant. These numbers identify the batch,
            also before Spark's number of the batch is known.
        batch: Spark's number of the batch, once it is known.
        rows: Number of rows that were processed.
        dropped_by_watermark: Number of these rows that Spark's watermark dropped as late.
        sic_batch: SIC of the batch alone.
        sic: SIC of the source time window.
    """

    now_s: float
    cls: str
    query: str
    key: str
    grants: Mapping[str, int]
    batch: int | None
    rows: int
    dropped_by_watermark: float
    sic_batch: float | None
    sic: float | None

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in SicLine.__slots__}


@dataclass(frozen=True, slots=True)
class ShedLine:
    """A record line: the decision of a class's shedder about a query's grant. Loads are in seconds.

    Attributes:
        shedder: The shedder's name.
        cls: The class.
        query: The query's name.
        observation_id: Id of the observation that the shedder got.
        now_s: Time of the wall clock.
        reason: The reason for the decision, in the shedder's words.
        capacity: The load that the turns of a cycle hold.
        waiting_load: The load of all waiting rows.
        kept_load: The load of the rows that are kept.
        kept_rows: Number of rows of this query that are kept.
        shed_rows: By reader, the number of rows that are shed and are not late.
        late_rows: Number of late rows.
        expected_sic: SIC of the query that the shedder expects after the decision.
    """

    shedder: str
    cls: str
    query: str
    observation_id: int
    now_s: float
    reason: str
    capacity: float
    waiting_load: float
    kept_load: float
    kept_rows: int
    shed_rows: Mapping[str, int]
    late_rows: int
    expected_sic: float

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ShedLine.__slots__}
