"""Sampling units of a grant, that is, rows that were drawn together: columns that estimates need."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.offset import Offset
from penstock.grants.plans.coins import segment_tosses
from penstock.grants.plans.protocol import DrawnBuckets, DrawnSegments
from penstock.grants.selection import Piece, grant_span
from penstock.policies.quality.estimates import bucket_contrasts, contrasts, expected_variance
from penstock.streams.protocol import StreamIndex

NO_UNIT = -1
"""Unit of rows in a grant that drew neither segments nor buckets; null in SQL."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitColumns:
    """Unit and contrast of opened segments, or of buckets.

    Attributes:
        first: First position of each segment, as in its header; for buckets the bucket's number.
        unit: Number of the unit; segments or buckets with the same number are set against each other.
        contrast: Factor with which a row goes into its unit's sum.
        expected: The unit's equal part of the first figure that `expected_variance` gives for the grant.
        doubt: The unit's equal part of the second figure.
    """

    first: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]
    contrast: npt.NDArray[np.float64]
    expected: float = 1.0
    doubt: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """How the rows of a grant were drawn.

    Attributes:
        within: 1 / row_keep - 1, the same for all rows.
        segments: Units of the opened segments by partition of the log; empty if segments were not drawn.
        buckets: Units of the key's buckets, if buckets were drawn.
        known: Whether every row of the grant had a known chance: no row was late, expired, or left out on
            purpose.
    """

    within: float
    segments: dict[int, UnitColumns]
    buckets: UnitColumns | None = None
    known: bool = True


def drawn_by(log: StreamIndex, offset: Offset) -> Drawn:
    """How a grant's rows were drawn, by the offset (with its `fitted_plan`) and segment headers alone."""
    drawing = offset.plan.drawing(log.key_buckets)
    if drawing is None:
        return Drawn(0.0, {}, known=False)
    known = offset.plan.chance(log.key_buckets) is not None
    known &= all(position <= offset.start.get(p, 0) for p, position in offset.late.items())
    known &= all(log.start(p) <= offset.start.get(p, 0) for p in offset.end)
    buckets = None if drawing.buckets is None else _buckets(drawing.buckets, offset.reader)
    segments = {} if drawing.segments is None else _segments(log, offset, drawing.segments)
    return Drawn(drawing.within, segments, buckets, known)


def _segments(log: StreamIndex, offset: Offset, draw: DrawnSegments) -> dict[int, UnitColumns]:
    """Units of the opened segments, by partition."""
    partition, first, sizes, tosses = (np.concatenate(parts) for parts in _opened(log, offset, draw.seed))
    every = np.concatenate([grant_span(log, offset, p)[2] for p in sorted(offset.end)])
    expected, doubt = expected_variance(every, draw.chance, paired=draw.drawn > 0)
    if draw.drawn:
        order = np.argsort(tosses, kind="stable")
        unit, contrast = np.empty(first.size, np.int64), np.empty(first.size)
        unit[order], contrast[order] = contrasts(sizes[order], draw.drawn)
    else:  # each segment is a unit by itself: its coin does not depend on other coins
        unit = np.arange(first.size)
        contrast = np.full(first.size, np.sqrt(1.0 - draw.chance))
    parts = max(1, np.unique(unit).size)
    unit += _reader_bits(offset.reader) | offset.grant << 20
    found = {}
    for p in sorted(offset.end):
        here = partition == p
        found[p] = UnitColumns(first[here], unit[here], contrast[here], expected / parts, doubt / parts)
    return found


DRAWN_TYPE = pa.struct(
    [
        ("within", pa.float64()),
        ("unit", pa.int64()),
        ("contrast", pa.float64()),
        ("known", pa.bool_()),
        ("expected", pa.float64()),
        ("doubt", pa.float64()),
    ]
)


def drawn_column(
    drawn: Drawn, partition: int, piece: Piece, buckets: npt.NDArray[np.int64] | None = None
) -> pa.Array:
    """How rows of one segment were drawn: the column `_drawn`, one struct a row.

    Args:
        drawn: Result of `drawn_by`.
        partition: Partition of the log.
        piece: The rows.
        buckets: Buckets of the rows' keys, if buckets were drawn.
    """
    count = piece.rows.num_rows
    unit, contrast = np.full(count, NO_UNIT, np.int64), np.zeros(count)
    of = drawn.segments.get(partition)
    if drawn.buckets is not None and buckets is not None:
        of = drawn.buckets
        unit, contrast = of.unit[buckets], of.contrast[buckets]
    elif of is not None:
        at = np.searchsorted(of.first, piece.segment)
        unit[:], contrast[:] = of.unit[at], of.contrast[at]
    known = np.full(count, drawn.known)
    if "_weight" in piece.rows.schema.names:  # a shared stream, whose writer may have sampled other units
        known &= piece.rows.column("_weight").to_numpy(zero_copy_only=False) == 1.0
    columns = [
        pa.array(np.full(count, drawn.within)),
        pa.array(unit, mask=unit == NO_UNIT),
        pa.array(contrast),
        pa.array(known),
        pa.array(np.full(count, 0.0 if of is None else of.expected)),
        pa.array(np.full(count, 0.0 if of is None else of.doubt)),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(DRAWN_TYPE))


def _opened(log: StreamIndex, offset: Offset, seed: int) -> list[tuple[npt.NDArray[np.int64], ...]]:
    """Columns of the opened segments: partition, first position, rows inside the grant, toss."""
    columns = []
    for p in sorted(offset.end):
        _, first, inside = grant_span(log, offset, p)
        mask = offset.plan.opens(p, first)
        tosses = segment_tosses(seed, p, first[mask]).astype(np.int64)
        columns.append((np.full(tosses.size, p), first[mask], inside[mask], tosses))
    return list(zip(*columns, strict=True))


def _buckets(draw: DrawnBuckets, reader: str) -> UnitColumns:
    """Units of buckets. They are the same in every grant, so that an estimate sums a bucket's rows of a
    window over all grants before it squares the sum.
    """
    ranks, is_kept = draw.ranks, draw.ranks < draw.kept
    unit, contrast = np.full(ranks.size, NO_UNIT, np.int64), np.zeros(ranks.size)
    of_rank, signed = bucket_contrasts(draw.kept, ranks.size)
    unit[is_kept] = of_rank[ranks[is_kept]] + _reader_bits(reader)
    contrast[is_kept] = signed[ranks[is_kept]]
    return UnitColumns(np.arange(ranks.size), unit, contrast)


def _reader_bits(reader: str) -> int:
    """Bits that tell units of a query's readers apart: 15 for the reader, 28 the grant, 20 the unit."""
    return (zlib.crc32(reader.encode()) & 0x7FFF) << 48
