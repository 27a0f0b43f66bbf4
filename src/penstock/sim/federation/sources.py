"""Sources of a federation, steady or bursty; all sources are computed at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.policies.quality.sic import IntArray
from penstock.sim.federation.layout import Layout
from penstock.vocabulary.errors import require_fraction, require_positive
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True)
class Bursts:
    """A source sends at `factor` times its rate for a `fraction` of the time, `length_s` at a time."""

    fraction: float = 0.1
    factor: float = 10.0
    length_s: float = 1.0

    def __post_init__(self) -> None:
        require_fraction("the part of the time with a burst", self.fraction, "0.1 in kalyvianaki2016 7.4")
        require_positive("the factor of a burst", self.factor, "10 in kalyvianaki2016 7.4")
        require_positive("the length of a burst", self.length_s, "in seconds")


@dataclass(frozen=True, slots=True, eq=False)
class SourceBatches:
    """Batches that sources sent, in order of the sources."""

    source: IntArray
    rows: IntArray
    sent_s: FloatArray


class Sources:
    """Sends batches of whole rows at each source's own rate and phase; a burst means more batches."""

    def __init__(self, layout: Layout, seed: int, bursts: Bursts | None = None) -> None:
        self._rng = np.random.default_rng((seed, 3))
        self._batches_per_s = layout.source_batches_per_s
        self._rows = np.rint(layout.source_rows_per_s / layout.source_batches_per_s).astype(np.int64)
        self._credit = self._rng.random(self._rows.size)
        self._bursts = bursts
        self._bursting = np.zeros(self._rows.size, np.bool_)
        self._next_toss_s = np.zeros(self._rows.size)

    def send(self, from_s: float, to_s: float) -> SourceBatches:
        """Batches that are sent between two moments, the first moment excluded."""
        length_s = to_s - from_s
        per_s = self._batches_per_s
        if self._bursts is not None:
            per_s = per_s * np.where(self._tossed(from_s), self._bursts.factor, 1.0)
        before = self._credit
        credit = before + per_s * length_s
        count = np.floor(credit).astype(np.int64)
        self._credit = credit - count
        source = np.repeat(np.arange(count.size), count)
        number = np.arange(source.size) - np.repeat(np.cumsum(count) - count, count)
        sent_s = from_s + (number + 1 - before[source]) / per_s[source]
        return SourceBatches(source, self._rows[source], np.minimum(sent_s, to_s))

    def _tossed(self, now_s: float) -> np.ndarray:
        """Whether each source is in a burst; a coin decides again after every `length_s`."""
        assert self._bursts is not None
        due = self._next_toss_s <= now_s + 1e-9
        draws = self._rng.random(due.size) < self._bursts.fraction
        self._bursting = np.where(due, draws, self._bursting)
        # the first one is shortened at random, so that sources do not change at the same moments
        first = self._rng.random(due.size) if now_s <= 0 else 1.0
        self._next_toss_s = np.where(due, now_s + self._bursts.length_s * first, self._next_toss_s)
        return self._bursting
