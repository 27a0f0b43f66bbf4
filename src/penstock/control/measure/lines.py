"""Lines of a run's record that the control plane writes, beside the decisions of load managers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SicLine:
    """What a micro-batch that ended, and the source time window with it, stand on: a line of `sic.jsonl`.

    Attributes:
        now_s: When the batch ended, on the wall clock.
        cls: The class of its query.
        query: The query's name.
        key: The query's key.
        grants: By reader with a part in the batch, the number of its grant. They say which batch it is, also
            where nobody has told Spark's number of it yet.
        batch: Spark's number of the batch.
        rows: Rows that were processed.
        dropped_by_watermark: Rows of them that Spark's watermark dropped as late.
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
    """What the shedder of a class decided about a query's grant, and why; loads are in seconds.

    Attributes:
        shedder: The shedder's name.
        cls: The class.
        query: The query's name.
        observation_id: Of what the shedder saw.
        now_s: On the wall clock.
        reason: The shedder's own words.
        capacity: What the turns of a cycle hold.
        waiting_load: What it would take to keep everything.
        kept_load: What is kept of it.
        kept_rows: Rows of this query that are kept.
        shed_rows: By reader, rows that are not late and are shed.
        late_rows: Rows that are late.
        expected_sic: The query's SIC after it.
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
