"""What is booked of a micro-batch that has ended: delays of rows and answers, and what these stand on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.control.decide.observing import ClassPlant
from penstock.control.measure.sic import QuerySic, SicLedger
from penstock.control.shed.class_shedding import Chosen
from penstock.control.state.members import Lease, Query


def book_delays(plant: ClassPlant, query: Query, lease: Lease, now_s: float) -> None:
    """Books the delays of a batch that admitted rows, as if these had been drawn evenly from its grant."""
    total = float(lease.arrival_rows.sum())
    rows = lease.arrival_rows * (lease.admitted / total) if total else lease.arrival_rows
    delays_s = np.maximum(now_s - lease.arrival_s, 0.0)
    plant.completed(query.key, delays_s, rows, learned_from=query.cost.ready)
    query.data_since_tick = True
    query.closing = lease.arrival_s, rows


def send_out(plant: ClassPlant, query: Query, now_s: float) -> None:
    """Answers leave with the batch that ended now: those of the last rows that had to wait for one.

    Spark moves the watermark after a batch and closes windows in the next. Every row of a batch counts as one
    that closed a window; in a stream in order of event time these are spread evenly.
    """
    if query.closing is not None:
        arrival_s, rows = query.closing
        plant.sent_out(np.maximum(now_s - arrival_s, 0.0), rows)
        query.closing = None


def sic_line(query: Query, lease: Lease, sic: QuerySic, now_s: float) -> dict[str, Any]:
    """What the micro-batch that ended now, and the source time window with it, stand on.

    Its grants say which it is, also where nobody has told Spark's number of it yet.
    """
    return {
        "now_s": now_s,
        "cls": query.cls,
        "query": query.name,
        "key": query.key,
        "grants": query.grants(lease),
        "batch": lease.batch,
        "rows": lease.admitted,
        "dropped_by_watermark": lease.dropped,
        "sic_batch": sic.batch,
        "sic": sic.value,
    }


def book_dropped(
    ledger: SicLedger, query: Query, batch: int, rows: Mapping[tuple[str, int], float], now_s: float
) -> dict[str, Any] | None:
    """Books Spark's report on a micro-batch: its number, and admitted rows that its watermark dropped.

    It may come before the next question, or when further batches have ended.

    Args:
        ledger: The books of SIC.
        query: Whose rows.
        batch: Spark's number of the micro-batch.
        rows: By reader and number of its grant; 0 where nothing was dropped.
        now_s: On the timer.

    Returns:
        The line of the micro-batch anew, if it was written before this was known.
    """
    total = sum(rows.values())
    query.dropped += total
    fell = ledger.dropped(now_s, query.key, rows)
    lease = query.lease
    if lease is not None and _is_of(query.grants(lease), rows):
        lease.batch, lease.dropped = batch, lease.dropped + total
        return None
    at = next((i for i, line in enumerate(query.noted) if _is_of(line["grants"], rows)), None)
    if at is None or (query.noted[at]["batch"] == batch and not total):
        return None
    line = query.noted[at]
    anew = query.noted[at] = {
        **line,
        "batch": batch,
        "dropped_by_watermark": line["dropped_by_watermark"] + total,
        "sic_batch": None if line["sic_batch"] is None else max(0.0, line["sic_batch"] - fell),
        "sic": ledger.of(query.key, now_s).value if total else line["sic"],
    }
    return anew


def _is_of(grants: Mapping[str, int], rows: Mapping[tuple[str, int], float]) -> bool:
    """Whether a report is on the micro-batch with these grants."""
    return any(grants.get(reader) == grant for reader, grant in rows)


def shed_line(query: Query, shedder: str, chosen: Chosen, now_s: float) -> dict[str, object]:
    """What the shedder of a class decided about a query's grant, and why. Loads are in seconds."""
    seen, decision = chosen.seen, chosen.decision
    return {
        "shedder": shedder,
        "cls": query.cls,
        "query": query.name,
        "observation_id": seen.id,
        "now_s": now_s,
        "reason": decision.reason,
        "capacity": seen.capacity,
        "waiting_load": float(seen.load.sum()),
        "kept_load": decision.kept_load,
        "kept_rows": chosen.rows,
        "shed_rows": dict(chosen.shed),
        "late_rows": chosen.cut.late_rows,
        "expected_sic": float(decision.expected_sic[0]),
    }
