"""Judges whether a probe of a capacity tells what a machine can process. Arithmetic alone: nothing runs here.

A probe counts rows in a second of a few micro-batches. That is a capacity only if the batches are about as
long as they are to be, if most of their time goes into rows, and if the machine went on at one speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from penstock.vocabulary.errors import UnmetError

CLOSE = 0.1
"""A batch whose length is within this fraction of the wanted length is not made longer or shorter."""
LEAST_LENGTH, MOST_LENGTH = 0.6, 1.6
"""Shortest and longest batch that a probe may have, as parts of the wanted length of a batch."""
LEAST_ROW_PART = 0.5
"""Least part of a batch's time that its rows must take. Where the fixed cost takes more, a batch of many more
rows would take hardly longer, and rows a second say little of what the machine can process."""
MOST_CHANGE = 2.0
"""Factor by which the capacities before and after a run may differ before the later probe is repeated."""
MOST_REPEATED = 10.0
"""Limit to repeating a later probe: the batches of all its tries together may take this many times as long as
a batch of the probe before the run."""
MOST_SPREAD = 0.25
"""Most by which the batches of a probe's two halves may differ. A machine of two cores
that was otherwise idle had batches of 4.5, 3.0 and 2.7 s in one probe."""
LEAST_GROWTH, MOST_GROWTH = 0.25, 8.0
"""Least and most factor by which the rows of a batch change from one probe to the next."""


class TooFewBatchesError(UnmetError):
    """A log has too few rows for a probe of batches of a size; a probe of smaller batches may be possible."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """A probe's result.

    Attributes:
        rows_per_s: Rows drained in a second of wall time.
        batch_rows: Rows of a batch.
        batch_s: Median time from the end of one batch to the end of the next.
        busy_fraction: Fraction of the time in which a batch ran.
        spread: How much shorter the batches of one half of the probe were than those of the other half, as a
            fraction of the longer.
    """

    rows_per_s: float
    batch_rows: int
    batch_s: float
    busy_fraction: float
    spread: float = 0.0


Probe = Callable[[int], Capacity]
"""Measures batches of a number of rows."""


class Doubt(Enum):
    """Why a probe may not tell the capacity."""

    LENGTH = "batches have about the wanted length"
    ROWS = "rows take at least half of a batch's time"
    SPEED = "the two halves of a probe differ by at most a quarter"


@dataclass(frozen=True, slots=True)
class Judged:
    """A capacity, and why it may be wrong.

    Attributes:
        capacity: As the last probe of the best search measured it.
        doubts: By kind, what was measured; none if the capacity is plausible.
        probes: Number of probes that were made.
    """

    capacity: Capacity
    doubts: dict[Doubt, str]
    probes: int

    @property
    def is_usable(self) -> bool:
        """Whether the capacity is plausible, or only uncertain because the machine's speed changes."""
        return self.doubts.keys() <= {Doubt.SPEED}

    @property
    def merit(self) -> tuple[bool, int]:
        """Orders searches: usable ones before others, then those with fewer doubts."""
        return self.is_usable, -len(self.doubts)


def spread(lengths_s: Sequence[float]) -> float:
    """How much the mean lengths of two halves of some batches differ, as a fraction of the longer mean."""
    half = len(lengths_s) // 2
    if half == 0:
        return 0.0
    first_s, last_s = sum(lengths_s[:half]) / half, sum(lengths_s[-half:]) / half
    return abs(first_s - last_s) / max(first_s, last_s)


def row_part(one: Capacity, other: Capacity) -> float:
    """The part of a batch's time that its rows take, from probes of two sizes; for the larger batch.

    A batch of n rows takes a + b n: two probes give b, and the part is b n / (a + b n).
    """
    small, large = sorted((one, other), key=lambda probed: probed.batch_rows)
    row_s = (large.batch_s - small.batch_s) / (large.batch_rows - small.batch_rows)
    return min(1.0, max(0.0, row_s * large.batch_rows / large.batch_s))


def doubts_of(found: Capacity, smaller: Capacity | None, batch_s: float) -> dict[Doubt, str]:
    """What speaks against a probe.

    Args:
        found: The probe.
        smaller: A probe of batches with at most half of the rows.
        batch_s: The wanted length of a batch.
    """
    doubts = {}
    if not LEAST_LENGTH <= found.batch_s / batch_s <= MOST_LENGTH:
        doubts[Doubt.LENGTH] = f"{found.batch_rows:,} rows took {found.batch_s:.2f} s of {batch_s:g} s"
    if smaller is not None and row_part(smaller, found) < LEAST_ROW_PART:
        doubts[Doubt.ROWS] = (
            f"{smaller.batch_rows:,} rows took {smaller.batch_s:.2f} s, "
            f"{found.batch_rows:,} rows {found.batch_s:.2f} s"
        )
    if found.spread > MOST_SPREAD:
        doubts[Doubt.SPEED] = f"{100 * found.spread:.0f} %"
    return doubts


def search(probe: Probe, batch_s: float, first_rows: int, tries: int) -> list[Capacity]:
    """Probes with more or fewer rows until a batch takes about `batch_s`, but at most `tries`."""
    rows, probes = first_rows, []
    for _ in range(tries):
        probes.append(probe(rows))
        ratio = batch_s / probes[-1].batch_s
        if abs(1.0 / ratio - 1.0) <= CLOSE:
            break
        rows = max(1, round(rows * min(max(ratio, LEAST_GROWTH), MOST_GROWTH)))
    return probes


def find_capacity(probe: Probe, batch_s: float, first_rows: int, tries: int = 3, searches: int = 3) -> Judged:
    """The capacity in batches of about `batch_s`; a search whose result is not plausible is repeated.

    A machine that stalls makes batches long, and a search then makes batches small. So each search but the
    first begins with the most rows that any probe had. It has a new probe of fewer rows to compare with.

    Args:
        probe: Measures batches of a number of rows.
        batch_s: The wanted length of a batch.
        first_rows: Rows of the first probe's batches.
        tries: Most probes of a search, without the probe that the result is compared with.
        searches: Most searches.

    Raises:
        TooFewBatchesError: The log has too few rows for a probe of the first search.
        UnmetError: The probed query has failed, in whichever search.
    """
    best: Judged | None = None
    count, most_rows = 0, first_rows
    for _ in range(searches):
        try:
            probes = search(probe, batch_s, most_rows, tries)
            found = probes[-1]
            smaller = [p for p in probes if 2 * p.batch_rows <= found.batch_rows]
            if not smaller and found.batch_rows > 1:
                smaller = [probe(found.batch_rows // 2)]
                count += 1
        except TooFewBatchesError:  # larger batches than the log has rows for: what was found before holds
            if best is None:
                raise
            break
        count += len(probes)
        most_rows = max(most_rows, *(probed.batch_rows for probed in probes))
        judged = Judged(found, doubts_of(found, smaller[-1] if smaller else None, batch_s), count)
        if best is None or judged.merit > best.merit:
            best = judged
        if not judged.doubts:
            break
    assert best is not None
    return replace(best, probes=count)


def probe_again(probe: Callable[[], Capacity], before: Capacity, tries: int = 3) -> Capacity:
    """Measures the capacity again after a run, with batches of the same number of rows.

    The probe is repeated if its halves, or the capacities before and after the run, differ much. On a machine
    that has become far slower a probe takes long, and is not repeated.

    Args:
        probe: Measures batches of the same number of rows.
        before: The capacity before the run.
        tries: Most probes.
    """
    took_s = 0.0
    for _ in range(tries):
        found = probe()
        took_s += found.batch_s
        factor = found.rows_per_s / before.rows_per_s
        is_near = found.spread <= MOST_SPREAD and 1 / MOST_CHANGE <= factor <= MOST_CHANGE
        if is_near or took_s > MOST_REPEATED * before.batch_s:
            break
    return found
