"""Reads the rows whose values a shedder needs: the engine asks for them, and reads no log itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.control.backlog.row_values import Fetch, FetchedValues, Look, SegmentValues
from penstock.grants.plans.values import Values, utilities, window_numbers
from penstock.policies.quality.sic import IntArray
from penstock.streams.protocol import StreamRows


def fetch_values(log: StreamRows, fetch: Fetch) -> FetchedValues:
    """Reads the values that a shedder needs. A host calls this in a thread, where it delays no question.

    Args:
        log: The stream.
        fetch: The request.
    """
    p, wanted = fetch.partition, fetch.segments
    found: dict[int, SegmentValues] = {}
    if wanted:
        headers = log.header_arrays(p, wanted[0], wanted[-1] + 1, keys=False)
        at = np.flatnonzero(np.isin(headers.first_position, wanted))
        spans = list(zip(headers.first_position[at].tolist(), headers.end_position[at].tolist(), strict=True))
        rows = [log.read(p, first, end) for first, end in spans]
        values = _computed([each.batch for each in rows], fetch.look)
        ends = np.cumsum([each.positions.size for each in rows]).tolist()
        for (first, end), each, upto in zip(spans, rows, ends, strict=True):
            found[first] = SegmentValues(each.positions, values[upto - each.positions.size : upto], end)
    return FetchedValues(fetch, found, {at: _value_at(log, fetch, at) for at in fetch.positions})


def _value_at(log: StreamRows, fetch: Fetch, position: int) -> int | None:
    headers = log.header_arrays(fetch.partition, position, position + 1, keys=False)
    if not len(headers):
        return None  # it was trimmed
    rows = log.read(fetch.partition, int(headers.first_position[0]), position + 1).batch
    return int(_computed([rows.slice(rows.num_rows - 1)], fetch.look)[0]) if rows.num_rows else None


def _computed(batches: Sequence[pa.RecordBatch], look: Look) -> Values | IntArray:
    """Computes the values of all rows of some batches at once."""
    if look.size_us:
        return window_numbers(batches, look.by, look.size_us)
    return utilities(batches, look.by)
