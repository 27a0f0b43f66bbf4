"""Measures the delays of a streaming query's rows by Spark's own progress reports.

The measurement does not depend on the control plane. The plan in each end offset says which rows a batch had,
the log's headers say when these arrived, and Spark says when the batch ended. It works for ungoverned readers
of a log just as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from penstock.grants.offset import Offset
from penstock.grants.selection import select
from penstock.streams.protocol import StreamRows
from penstock.vocabulary.model import DelayStats, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One micro-batch.

    Attributes:
        began_s: When Spark began the batch, in seconds since the epoch.
        ended_s: When the batch was complete.
        rows: Number of rows that the batch processed.
        arrival_s: Arrival times of these rows, a few points for each segment.
        weight: How many rows each point represents.
        offset: The batch's end offset, with the plan.
    """

    began_s: float
    ended_s: float
    rows: int
    arrival_s: FloatArray
    weight: FloatArray
    offset: Offset

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s


def batches(progress: Iterable[Mapping[str, Any]], log: StreamRows, source: int = 0) -> list[Batch]:
    """The micro-batches of a query with rows, from its progress reports as dicts."""
    found = []
    for report in progress:
        start, end = (report["sources"][source][key] for key in ("startOffset", "endOffset"))
        if not report["numInputRows"] or end is None or start == end:
            continue  # a source without new rows repeats its last offset, and so its last grant
        offset = Offset.from_json(json.loads(end) if isinstance(end, str) else end)
        began_s = datetime.fromisoformat(report["timestamp"]).timestamp()
        ended_s = began_s + report["durationMs"]["triggerExecution"] / 1000.0
        arrival_s, weight = _arrivals(log, offset)
        found.append(Batch(began_s, ended_s, round(float(weight.sum())), arrival_s, weight, offset))
    return found


def _arrivals(log: StreamRows, offset: Offset) -> tuple[FloatArray, FloatArray]:
    times, weights = [np.empty(0)], [np.empty(0)]
    points = (np.arange(4) + 0.5) / 4
    for selection in select(log, offset):
        if not selection.first.size:
            continue
        p = selection.partition
        headers = log.header_arrays(p, int(selection.first[0]), int(selection.end[-1]), keys=False)
        at = np.searchsorted(headers.first_position, selection.first, side="right") - 1
        low_s, high_s = headers.arrival_min_us[at] / 1e6, headers.arrival_max_us[at] / 1e6
        slope = (high_s - low_s) / headers.rows[at]
        from_s = low_s + slope * (selection.first - headers.first_position[at])
        to_s = low_s + slope * (selection.end - headers.first_position[at])
        times.append((from_s[:, None] + (to_s - from_s)[:, None] * points).ravel())
        weights.append(np.repeat(selection.kept / 4.0, 4))
    return np.concatenate(times), np.concatenate(weights)


def rows_in_time(done: Iterable[Batch], target_s: float, from_s: float, until_s: float) -> float:
    """Number of rows that arrived in a time span and whose batch ended within the target after that."""
    total = 0.0
    for batch in done:
        inside = (batch.arrival_s >= from_s) & (batch.arrival_s < until_s)
        good = inside & (batch.ended_s - batch.arrival_s <= target_s)
        total += float(batch.weight[good].sum())
    return total


def delays(done: Iterable[Batch], from_s: float, until_s: float) -> DelayStats:
    """Delays of the rows whose batch ended in a time span."""
    from penstock.control.measure.delays import stats

    chosen = [batch for batch in done if from_s <= batch.ended_s < until_s]
    if not chosen:
        return DelayStats()
    times = np.concatenate([batch.ended_s - batch.arrival_s for batch in chosen])
    return stats(times, np.concatenate([batch.weight for batch in chosen]))
