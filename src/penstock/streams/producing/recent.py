"""The newest rows of a stream and their rate, as a sample of the rows to come."""

from __future__ import annotations

import pyarrow as pa

from penstock.streams.protocol import StreamIndex, StreamRows

RATE_OVER_S = 60.0
"""The rate is taken over this time before a stream's last row."""


def last_rows(log: StreamRows, rows: int) -> pa.RecordBatch:
    """About `rows` of a stream's last rows, in whole segments, with the user's columns alone."""
    found = [pa.RecordBatch.from_pylist([], schema=log.user_schema)]
    for p in range(log.partitions):
        end = log.end(p)
        first = max(log.start(p), end - max(1, rows // log.partitions))
        headers = log.header_arrays(p, first, end, keys=False)
        for begins, ends in zip(headers.first_position.tolist(), headers.end_position.tolist(), strict=True):
            found.append(log.read(p, begins, ends).batch.select(log.user_schema.names))
    return pa.concat_batches(found)


def rate_per_s(log: StreamIndex) -> float:
    """Rows a second, summed over partitions, in the minute before each partition's own last row."""
    total = 0.0
    for p in range(log.partitions):
        headers = log.header_arrays(p, log.start(p), log.end(p), keys=False)
        if not len(headers):
            continue
        recent = headers.arrival_max_us >= headers.arrival_max_us[-1] - RATE_OVER_S * 1e6
        span_us = headers.arrival_max_us[-1] - headers.arrival_min_us[recent][0]
        total += float(headers.rows[recent].sum()) / max(float(span_us) / 1e6, 1.0)
    return total
