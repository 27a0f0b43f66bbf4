"""What a row of a stream is worth in a grant: its SIC, from segment headers alone.

A source's rows of one source time window share 1 / sources of their query's SIC (kalyvianaki2016 eq. 1). How
many that window will have is not known when a grant is made, so it is taken from the window that ends with
the grant. Headers do not change, and the figure is in the offset: a batch that is run again has the same.

Rows of a shared segment bring their SIC with them, among all that its writer reads. Here they are one source
of several, and have that part of it.
"""

from __future__ import annotations

from penstock.grants.offset import Positions
from penstock.streams.protocol import ReadableStream, StreamLog

LEAST_WATCHED_US = 250_000
"""Of a stream that began later than its window: from less time nothing is scaled up."""


def row_sic(log: StreamLog, end: Positions, stw_us: int, sources: int) -> float:
    """SIC of a row of a grant that ends at these positions: 1 / (rows of the window x sources).

    Of a shared segment the part of its rows' own SIC that counts: 1 / sources.
    """
    rows = 1.0 if "_sic" in log.schema.names else max(1.0, window_rows(log, end, stw_us))
    return 1.0 / (rows * max(1, sources))


def window_rows(log: ReadableStream, end: Positions, stw_us: int) -> float:
    """Rows that a stream offered in the source time window that ends with the last row before `end`.

    A stream that is younger than the window is scaled up by the time that it is there.
    """
    newest_us = oldest_us = None
    for p, position in end.items():
        if position > (first := log.start(p)):
            last = log.header_arrays(p, position - 1, position, keys=False)
            begin = log.header_arrays(p, first, first + 1, keys=False)
            if not (len(last) and len(begin)):
                continue  # trimmed, or lost, since it was looked at
            newest_us = max(newest_us or 0, int(last.arrival_max_us[-1]))
            oldest_us = min(oldest_us or newest_us, int(begin.arrival_min_us[0]))
    if newest_us is None or oldest_us is None:
        return 0.0
    since_us = newest_us - stw_us
    rows = sum(max(0, at - min(at, log.position_at(p, since_us))) for p, at in end.items())
    watched_us = max(newest_us - oldest_us, min(LEAST_WATCHED_US, stw_us))
    return rows * max(1.0, stw_us / watched_us)
