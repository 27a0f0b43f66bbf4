"""What a class's shedder looks up in waiting rows: each segment is read once for all queries of the class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.control.backlog.waiting import Cut, Stretch
from penstock.control.state.members import Reader
from penstock.grants.plans.values import Values, utilities, window_numbers
from penstock.policies.quality.sic import IntArray
from penstock.streams.protocol import StreamLog

Inside = tuple[Stretch, IntArray, IntArray]
"""A stretch, which of its segments a cut decides about, and how many rows of each."""


def inside(stretches: Sequence[Stretch], decided: Cut) -> list[Inside]:
    """By stretch, which of its segments have rows that a cut decides about, and how many."""
    found = []
    for stretch in stretches:
        late = decided.late[stretch.reader][stretch.partition]
        end = decided.ends[stretch.reader][stretch.partition]
        rows = np.minimum(stretch.first + stretch.rows, end) - np.maximum(stretch.first, late)
        at = np.flatnonzero(rows > 0)
        found.append((stretch, at, rows[at]))
    return found


def late_part(stretches: Sequence[Stretch], decided: Cut) -> list[Inside]:
    """The same for the rows that the cut has as late."""
    found = []
    for stretch in stretches:
        late = decided.late[stretch.reader][stretch.partition]
        rows = np.minimum(stretch.first + stretch.rows, late) - stretch.first
        at = np.flatnonzero(rows > 0)
        found.append((stretch, at, rows[at]))
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked up.

    Attributes:
        by: An expression in CQL that says what a row is worth, or the column with its time.
        size_us: Of windows; 0 for what rows are worth.
    """

    by: str
    size_us: int = 0


class RowValues:
    """Values of waiting rows, remembered while a query of the class still has the row to come."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, Look], dict[int, Values | IntArray]] = {}

    @property
    def rows(self) -> int:
        """How many are remembered."""
        return sum(values.size for known in self._known.values() for values in known.values())

    def of(self, log: StreamLog, part: Inside, look: Look, first: int) -> list[Values | IntArray]:
        """The values of a stretch's rows, an array a segment.

        Args:
            log: Its stream.
            part: The stretch, and how many rows of which of its segments.
            look: What is looked up.
            first: The first position that counts.
        """
        stretch, at, rows = part
        known = self._known.setdefault((str(log.directory), stretch.partition, look), {})
        segments = stretch.segment[at].tolist()
        known.update(_read(log, stretch.partition, [s for s in segments if s not in known], look))
        begins = (max(0, max(first, int(stretch.first[0])) - segment) for segment in segments)
        return [
            known[segment][begin : begin + count]
            for segment, begin, count in zip(segments, begins, rows.tolist(), strict=True)
        ]

    def at(self, log: StreamLog, partition: int, position: int, look: Look) -> int:
        """The value of one row."""
        (segment,) = log.headers(partition, position, position + 1)
        begin = segment.first_position
        return int(_read(log, partition, [begin], look)[begin][position - begin])

    def forget(self, readers: Iterable[Reader]) -> None:
        """Lets go of segments that all of a class's readers are past."""
        least: dict[tuple[str, int], int] = {}
        for reader in readers:
            for p, position in reader.positions.items():
                at = str(reader.log.directory), p
                least[at] = min(position, least.get(at, position))
        for key, known in list(self._known.items()):
            before = least.get(key[:2])
            gone = [s for s, values in known.items() if before is None or s + values.size <= before]
            for segment in gone:
                del known[segment]
            if not known:
                del self._known[key]


def _read(
    log: StreamLog, partition: int, segments: Sequence[int], look: Look
) -> dict[int, Values | IntArray]:
    """The values of some segments in order, by where they begin; all of them are computed at once."""
    if not segments:
        return {}
    wanted = set(segments)
    headers = [h for h in log.headers(partition, segments[0], segments[-1] + 1) if h.first_position in wanted]
    batches = [log.read(header) for header in headers]
    values: Values | IntArray
    if look.size_us:
        values = window_numbers(batches, look.by, look.size_us)
    else:
        values = utilities(batches, look.by)
    ends = np.cumsum([header.rows for header in headers]).tolist()
    return {h.first_position: values[end - h.rows : end] for h, end in zip(headers, ends, strict=True)}
