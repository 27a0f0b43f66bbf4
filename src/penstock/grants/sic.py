"""SIC of a row in a grant, computed from segment headers alone.

A source's rows of one source time window share 1 / sources of their query's SIC (kalyvianaki2016 eq. 1). The
number of rows in that window is not known when a grant is made, so the window that ends with the grant is
taken. Headers do not change, and the figure is in the offset: a batch that is run again has the same SIC.

Rows of a shared stream bring the SIC that they have in the query that writes the stream. In a query that
reads the shared stream as one source of several, they have 1 / sources of that SIC.
"""

from __future__ import annotations

from penstock.grants.offset import Positions
from penstock.streams.columns import is_shared
from penstock.streams.protocol import StreamIndex

LEAST_WATCHED_US = 250_000
"""A stream younger than the window is scaled up as if it had existed for at least this long."""


def row_sic(log: StreamIndex, end: Positions, stw_us: int, sources: int) -> float:
    """SIC of a row of a grant that ends at these positions: 1 / (rows of the window x sources).

    For a shared stream: the factor of its rows' own SIC, 1 / sources.
    """
    rows = 1.0 if is_shared(log.schema) else max(1.0, window_rows(log, end, stw_us))
    return 1.0 / (rows * max(1, sources))


def window_rows(log: StreamIndex, end: Positions, stw_us: int) -> float:
    """Rows that a stream offered in the source time window that ends with the last row before `end`.

    For a stream younger than the window, the number is scaled up from its age to the window.
    """
    newest_us = oldest_us = None
    for p, position in end.items():
        if position > (first := log.start(p)):
            last = log.header_arrays(p, position - 1, position, keys=False)
            begin = log.header_arrays(p, first, first + 1, keys=False)
            if not (len(last) and len(begin)):
                continue  # the rows were trimmed or lost meanwhile
            newest_us = max(newest_us or 0, int(last.arrival_max_us[-1]))
            oldest_us = min(oldest_us or newest_us, int(begin.arrival_min_us[0]))
    if newest_us is None or oldest_us is None:
        return 0.0
    since_us = newest_us - stw_us
    rows = sum(max(0, at - min(at, log.position_at(p, since_us))) for p, at in end.items())
    watched_us = max(newest_us - oldest_us, min(LEAST_WATCHED_US, stw_us))
    return rows * max(1.0, stw_us / watched_us)
