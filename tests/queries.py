"""Queries as the control plane keeps them, for tests that hold a contest, or a part of one, by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.control.backlog.waiting import Waiting, WaitingSegments
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.snapshot import ClassTraits, Snapshot
from penstock.control.schedule.table import QueryTable
from penstock.control.state.query import Joining, Query, Reader
from penstock.grants.offset import Offset
from penstock.streams.tailing import StreamInfo
from penstock.vocabulary.moment import Moment


def waiting_segments(*segments: tuple[int, float, float], first: int = 0) -> WaitingSegments:
    """Segments that wait one after the other: rows, when the first and when the last of them arrived."""
    rows = np.array([rows for rows, _, _ in segments], np.int64)
    low_s, high_s = (np.array([segment[i] for segment in segments], np.float64) for i in (1, 2))
    ends = first + np.cumsum(rows)
    return WaitingSegments.of("r", 0, ends - rows, ends, low_s, high_s, first)


def waits(query: Query, rows: int, oldest_s: float) -> None:
    """So many rows wait for a query; all of them arrived at one moment."""
    parts = [waiting_segments((rows, oldest_s, oldest_s))] if rows else []
    query.backlog.waiting = Waiting(parts, {"r": {0: rows}})


def asks(query: Query) -> None:
    """A query's question is open."""
    query.question.open, query.question.until_s = "r", math.inf


def reader_of(query: str, stream: str, name: str = "r", token: str = "") -> Reader:
    """A reader at the beginning of a stream."""
    offset = Offset.initial(name, {0: 0})
    return Reader(
        name, Joining(query, query, "", token=token), StreamInfo(stream, stream), None, offset, offset
    )


def learned_query(cls: str, key: str = "", known: bool = True) -> Query:
    """A query with a reader, and with a cost that was learned from batches of many sizes."""
    key = key or cls
    query = Query(Joining(key, key, cls), readers={"r": reader_of(key, "s")})
    for i in range(8 if known else 0):
        rows = 1000 * 4 ** min(i, 4)
        query.costs.model.learn(rows, 0.2 + rows * 20e-6)
    return query


def seen_at(queries: Iterable[Query], classes: Sequence[ClassTraits], at: Moment) -> Snapshot:
    """Queries as they are now, none of them on the way of another's rows."""
    table = QueryTable(Paths({}, {}))
    table.begin_anew(queries, [cls.name for cls in classes])
    return table.look(classes, at)
