"""Windows over a stream that the real plans sample: true aggregates beside estimates of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.grants.offset import Books, Offset
from penstock.grants.plans import SCALE, Sampling, plan_for
from penstock.grants.sampling_units import NO_UNIT, drawn_by
from penstock.grants.selection import fitted_plan
from penstock.policies.quality.estimates import Aggregate, SampledRows, Sums, estimate, sums_by_group
from penstock.streams.protocol import HeaderArrays
from penstock.vocabulary.model import FloatArray

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StreamShape:
    """A stream, cut into segments as producers append it, and the windows over it.

    Attributes:
        rate_per_s: Mean rows a second.
        seconds: How long.
        span_s: Time from one segment to the next.
        sizes: How rows differ between segments: none, poisson, bursty (every fifth span has ten times),
            lognormal, or decades (1, 10, 100 or 2,000 rows, each as often; `rate_per_s` is not looked at).
        size_sigma: Of the logarithm of lognormal sizes.
        drift: By how much the rate grows from beginning to end, as a factor.
        partitions: Of the log.
        groups: Groups in the query; the first has most rows.
        values: Of the value: gaussian, exponential, lognormal (sigma 1), heavy (sigma 2), trend (it grows),
            or segment (each segment has a level of its own, spread twice as wide as its rows).
        keys: Different keys.
        key_skew: Exponent of the keys' popularity; 0 for all alike.
        key_buckets: Of the stream.
        window_s: Length of a tumbling window.
        jitter_s: Event time is up to so much before arrival.
    """

    rate_per_s: float = 4000.0
    seconds: float = 12.0
    span_s: float = 0.02
    sizes: str = "poisson"
    size_sigma: float = 1.0
    drift: float = 1.0
    partitions: int = 1
    groups: int = 4
    values: str = "gaussian"
    keys: int = 2000
    key_skew: float = 0.0
    key_buckets: int = 256
    window_s: float = 4.0
    jitter_s: float = 0.05


class MadeStream:
    """A stream in memory, with as much of a log as plans ask for."""

    def __init__(self, shape: StreamShape, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.shape, self.partitions = shape, shape.partitions
        self.key_buckets, self.key_column = shape.key_buckets, "key"
        spans = round(shape.seconds / shape.span_s)
        self._rows: list[Ints] = []
        self.arrival_s: list[FloatArray] = []
        for _ in range(shape.partitions):
            rows = _sizes(shape, spans, random)
            self._rows.append(rows[rows > 0])
            self.arrival_s.append(np.repeat(np.arange(spans) * shape.span_s, rows))
        self._firsts = [np.concatenate([[0], np.cumsum(rows)[:-1]]) for rows in self._rows]
        key_of = random.choice(shape.keys, p=_popularity(shape), size=sum(a.size for a in self.arrival_s))
        bucket_of_key = random.integers(0, shape.key_buckets, shape.keys)
        self.bucket = _split(bucket_of_key[key_of], self.arrival_s)
        self.group = _split(_groups(shape, key_of.size, random), self.arrival_s)
        arrival = np.concatenate(self.arrival_s)
        segment_of = np.repeat(np.arange(sum(r.size for r in self._rows)), np.concatenate(self._rows))
        self.value = _split(_values(shape, arrival, key_of, segment_of, random), self.arrival_s)
        event_s = arrival - random.uniform(0, shape.jitter_s, arrival.size)
        self.window = _split(np.maximum(0, event_s // shape.window_s).astype(np.int64), self.arrival_s)
        self.windows = int(max(w.max() for w in self.window)) + 1

    def start(self, partition: int = 0) -> int:
        return 0

    def end(self, partition: int = 0) -> int:
        return int(self.arrival_s[partition].size)

    def position_at(self, partition: int, arrival_us: int) -> int:
        return int(np.searchsorted(self.arrival_s[partition], arrival_us / 1e6))

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        first, rows = self._firsts[partition], self._rows[partition]
        lo, hi = int(np.searchsorted(first + rows, start, side="right")), int(np.searchsorted(first, end))
        none = np.zeros(max(0, hi - lo), np.int64)
        return HeaderArrays(first[lo:hi], rows[lo:hi], none, none, none.astype(np.float64))


def _sizes(shape: StreamShape, spans: int, random: np.random.Generator) -> Ints:
    mean = shape.rate_per_s * shape.span_s / shape.partitions
    level = np.linspace(1.0, shape.drift, spans)
    level *= mean / level.mean()
    if shape.sizes == "none":
        return np.maximum(1, np.round(level)).astype(np.int64)
    if shape.sizes == "decades":
        return random.choice(np.array([1, 10, 100, 2000]), spans)
    if shape.sizes == "lognormal":  # with the same mean for every sigma
        level = level * random.lognormal(-(shape.size_sigma**2) / 2, shape.size_sigma, spans)
    if shape.sizes == "bursty":
        level = level * np.where(random.random(spans) < 0.2, 10.0, 1.0) / 2.8
    return random.poisson(level)


def _popularity(shape: StreamShape) -> FloatArray:
    weights = np.arange(1, shape.keys + 1, dtype=np.float64) ** -shape.key_skew
    return weights / weights.sum()


def _groups(shape: StreamShape, rows: int, random: np.random.Generator) -> Ints:
    weights = 1.0 / np.arange(1, shape.groups + 1)
    return random.choice(shape.groups, p=weights / weights.sum(), size=rows)


def _values(
    shape: StreamShape, arrival: FloatArray, key_of: Ints, segment_of: Ints, random: np.random.Generator
) -> FloatArray:
    """Half of the spread belongs to the key, so that rows of one bucket are alike."""
    if shape.values == "segment":
        of_segment = random.normal(0, 20, int(segment_of.max()) + 1)[segment_of]
        return 50.0 + of_segment + random.normal(0, 10, arrival.size)
    of_key = random.normal(0, 1, shape.keys)[key_of]
    if shape.values == "exponential":
        return random.exponential(50.0, arrival.size)
    if shape.values in ("lognormal", "heavy"):
        sigma = 1.0 if shape.values == "lognormal" else 2.0
        return np.exp(sigma * (of_key + random.normal(0, 1, arrival.size)) / np.sqrt(2))
    trend = 20.0 * arrival if shape.values == "trend" else 0.0
    return 50.0 + 10.0 * of_key + random.normal(0, 10, arrival.size) + trend


def _split(column: npt.NDArray[np.generic], like: Sequence[FloatArray]) -> list:
    return np.split(column, np.cumsum([a.size for a in like])[:-1])


@dataclass(frozen=True, slots=True)
class Overload:
    """How a stream is shed: a grant every `grant_s`, each with a keep fraction between two."""

    sampling: Sampling
    keep_low: float
    keep_high: float
    grant_s: float = 0.5


def sampled(stream: MadeStream, overload: Overload, seed: int) -> tuple[SampledRows, Ints]:
    """What the plans keep of a stream, grant by grant, and the group (window, group) of each kept row."""
    random = np.random.default_rng(seed)
    parts: list[tuple[SampledRows, Ints]] = []
    ends = np.arange(overload.grant_s, stream.shape.seconds + overload.grant_s, overload.grant_s)
    offset = Offset.initial("r", dict.fromkeys(range(stream.partitions), 0))
    cohort_seed = int(random.integers(1 << 31))
    for end_s in ends:
        keep = float(random.uniform(overload.keep_low, overload.keep_high))
        plan_seed = cohort_seed if overload.sampling == "key" else int(random.integers(1 << 31))
        plan = plan_for(keep, overload.sampling, plan_seed, stream.key_buckets)
        # grants end at a row limit as well as at a cut: in the middle of segments
        end = {
            p: min(stream.end(p), stream.position_at(p, int(end_s * 1e6)) + int(random.integers(0, 40)))
            for p in range(stream.partitions)
        }
        offset = offset.advanced({p: max(e, offset.end[p]) for p, e in end.items()}, {}, plan, Books())
        offset = replace(offset, plan=fitted_plan(stream, offset))
        parts += list(_kept(stream, offset))
    columns = [
        np.concatenate([getattr(rows, name) for rows, _ in parts])
        for name in SampledRows.__dataclass_fields__
    ]
    return SampledRows(*columns), np.concatenate([group for _, group in parts])


def _kept(stream: MadeStream, offset: Offset) -> Iterator[tuple[SampledRows, Ints]]:
    plan, drawn = offset.plan, drawn_by(stream, offset)
    weight = 1.0 / max(plan.chance(stream.key_buckets) or 0.0, 1.0 / SCALE)
    for p in sorted(offset.end):
        start, end = offset.start[p], offset.end[p]
        if start >= end:
            continue
        at = np.arange(start, end)
        columns, slot = drawn.buckets, stream.bucket[p][at]
        if columns is not None:
            keep = plan.kept_buckets(stream.key_buckets)[slot]
        else:
            first = stream.header_arrays(p, start, end).first_position
            segment = np.searchsorted(first, at, side="right") - 1
            mask = plan.keeps(stream, p, at, ())
            keep = (np.ones(at.size, np.bool_) if mask is None else mask) & plan.opens(p, first)[segment]
            columns = drawn.segments.get(p)
            if columns is not None:
                slot = np.searchsorted(columns.first, first[segment])
        at, slot = at[keep], slot[keep]
        rows = SampledRows(
            stream.value[p][at],
            np.full(at.size, weight),
            np.full(at.size, drawn.within),
            np.zeros(at.size) if columns is None else columns.contrast[slot],
            np.full(at.size, NO_UNIT) if columns is None else columns.unit[slot],
            np.full(at.size, 0.0 if columns is None else columns.expected),
            np.full(at.size, 0.0 if columns is None else columns.doubt),
        )
        yield rows, stream.window[p][at] * stream.shape.groups + stream.group[p][at]


def true_sums(stream: MadeStream) -> list[Sums]:
    """Of all rows, each with weight 1."""
    value = np.concatenate(stream.value)
    group = np.concatenate(stream.window) * stream.shape.groups + np.concatenate(stream.group)
    none, ones = np.zeros(value.size), np.ones(value.size)
    rows = SampledRows(value, ones, none, none, np.full(value.size, NO_UNIT, np.int64), none, none)
    return sums_by_group(rows, group, stream.windows * stream.shape.groups)


@dataclass(slots=True)
class Coverage:
    """How often intervals hold the true value; `ratio` is mean squared error over mean estimated variance."""

    inside: int = 0
    intervals: int = 0
    without: int = 0
    squared_error: float = 0.0
    variance: float = 0.0

    @property
    def percent(self) -> float:
        return 100.0 * self.inside / max(1, self.intervals)

    @property
    def ratio(self) -> float:
        return self.squared_error / self.variance if self.variance else 1.0

    def add(self, sums: Sums, truth: Sums, aggregate: Aggregate) -> None:
        true = estimate(truth, aggregate).value
        got = estimate(sums, aggregate)
        if got.low is None or got.high is None or true is None or got.value is None or sums.whole:
            self.without += 1
            return
        self.intervals += 1
        self.inside += got.low <= true <= got.high
        scale = abs(true) or 1.0
        self.squared_error += ((got.value - true) / scale) ** 2
        self.variance += ((got.error or 0.0) / scale) ** 2


def coverage(
    shape: StreamShape, overload: Overload, repeats: int, seed: int, streams: int = 4
) -> dict[Aggregate, Coverage]:
    """Draws samples of a few streams again and again; counts the intervals that hold the true value."""
    found: dict[Aggregate, Coverage] = {"count": Coverage(), "sum": Coverage(), "avg": Coverage()}
    for s in range(streams):
        stream = MadeStream(shape, seed + s)
        truth = true_sums(stream)
        for r in range(max(1, repeats // streams)):
            rows, group = sampled(stream, overload, seed=hash((seed, s, r)) & 0x7FFFFFFF)
            for sums, true in zip(sums_by_group(rows, group, len(truth)), truth, strict=True):
                for aggregate, tally in found.items():
                    if true.rows:
                        tally.add(sums, true, aggregate)
    return found
