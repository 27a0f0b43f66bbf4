"""A shed plan: which rows of a range are kept, as a function of their positions, or of what is in them.

Coins are a hash of (seed, position), so whoever asks, before or after a crash, gets the same rows. Where
values decide (units `utility` and `window`), they are looked up in the log, which does not change.
Probabilities are whole numbers of `SCALE`: what is written in an offset is exactly what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.errors import InvalidInputError

SCALE = 1 << 32
"""Probabilities are in parts of this."""

Unit = Literal["row", "segment", "key", "chosen", "utility", "window"]
Sampling = Literal["auto", "row", "segment", "key"]
SAMPLINGS: tuple[Sampling, ...] = ("auto", "row", "segment", "key")

_OPEN_FRACTION = 0.5
"""Under `auto` at least this part of an opened segment's rows is kept; the rest of the shedding skips whole
segments. Planning and reading takes half as long as with 0.25 (90 ms of CPU less for 400,000 kept rows),
and a dropped row inside a segment costs a thirtieth of a processed one: one for each that is kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is kept of a grant's rows.

    Attributes:
        unit: What a coin is tossed for: a row (inside segments that were themselves chosen), a whole
            segment, or a bucket of the key's hash; `chosen` where no coin decides, but a shedder did;
            `utility` and `window` where it did by values of the rows.
        segment_keep: Probability that a segment is opened, in parts of `SCALE`.
        row_keep: Probability that a row of an opened segment is kept, in parts of `SCALE`; for unit
            `utility`, that a row is that is worth just `least`.
        key_keep: For unit `key`, how many of the stream's key buckets are kept; else 0.
        seed: Of the hash.
        drawn: Part of the rows that lie in opened segments, in parts of `SCALE`, where weights are taken
            from it instead of `segment_keep`; else 0. See `evened`.
        chosen: For units `chosen` and `window`, by partition where the segments with kept rows begin.
        by: For unit `utility` the expression that says what a row is worth, in CQL; for unit `window` the
            column with its time.
        least: For unit `utility`, rows that are worth more are kept.
        size_us: For unit `window`, how long one is.
        windows: For unit `window`, the numbers of those that are kept: time / size, rounded down.
        decided: For unit `window`, the highest number that was decided about.
    """

    unit: Unit = "row"
    segment_keep: int = SCALE
    row_keep: int = SCALE
    key_keep: int = 0
    seed: int = 0
    drawn: int = 0
    chosen: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    by: str = ""
    least: float = 0.0
    size_us: int = 0
    windows: tuple[int, ...] = ()
    decided: int = 0

    @property
    def looks_into_rows(self) -> bool:
        """Whether it takes the rows' values, not only their places, to know what is kept."""
        return self.unit in ("utility", "window")

    @property
    def keeps_all(self) -> bool:
        return self.unit in ("row", "segment") and self.segment_keep == SCALE and self.row_keep == SCALE

    def keep_probability(self, key_buckets: int = 0) -> float | None:
        """Probability with which a row that is not late is kept: one over the weight of a kept row.

        `None` where that is not known: segments were chosen, and not at random, or rows by their values.
        """
        if self.looks_into_rows:
            return None
        if self.unit == "key":
            return self.key_keep / key_buckets
        if self.unit == "chosen":
            return self.drawn / SCALE if self.drawn else None
        return ((self.drawn or self.segment_keep) / SCALE) * (self.row_keep / SCALE)

    def to_json(self) -> dict[str, Any]:
        """Only what differs from keeping everything: offsets stay short."""
        default = Plan()
        names = [name for name in self.__slots__ if name not in ("chosen", "windows")]
        encoded = {
            name: getattr(self, name) for name in names if getattr(self, name) != getattr(default, name)
        }
        if self.windows:
            encoded["windows"] = list(self.windows)
        if self.chosen:
            encoded["chosen"] = {str(p): list(firsts) for p, firsts in self.chosen.items()}
        return encoded

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Plan:
        unknown = sorted(set(encoded) - set(cls.__slots__))
        if unknown:
            raise InvalidInputError(
                f"a plan has {', '.join(cls.__slots__)}",
                f"unknown {', '.join(unknown)}",
                "a newer Penstock made it: use that one, or a new checkpointLocation",
            )
        chosen = {int(p): tuple(firsts) for p, firsts in encoded.get("chosen", {}).items()}
        return cls(**{**encoded, "chosen": chosen, "windows": tuple(encoded.get("windows", ()))})


KEEP_ALL = Plan()


def plan_for(keep_fraction: float, sampling: Sampling, seed: int, key_buckets: int = 0) -> Plan:
    """The plan that keeps a fraction of the rows, each with the same probability.

    Args:
        keep_fraction: How much.
        sampling: The unit; `auto` tosses for rows and, where little is kept, for segments first.
        seed: Of the hash; another one in every grant, except by key, where a cohort is meant to last.
        key_buckets: Buckets of the stream's key; needed for `key`.
    """
    if not 0.0 <= keep_fraction <= 1.0:
        raise InvalidInputError("a keep fraction lies between 0 and 1", keep_fraction, "clamp it")
    if keep_fraction == 1.0:
        return KEEP_ALL
    if sampling == "key":
        if not key_buckets:
            raise InvalidInputError(
                "sampling by key needs a stream with a key", "a stream without", "declare key: <column>"
            )
        return Plan("key", key_keep=round(keep_fraction * key_buckets), seed=seed)
    if sampling == "segment":
        return Plan("segment", segment_keep=round(keep_fraction * SCALE), seed=seed)
    if sampling == "row":
        return Plan("row", row_keep=round(keep_fraction * SCALE), seed=seed)
    inside = max(keep_fraction, _OPEN_FRACTION)
    return Plan(
        "row", segment_keep=round(keep_fraction / inside * SCALE), row_keep=round(inside * SCALE), seed=seed
    )


def opened(plan: Plan, partition: int, first_positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which segments are opened, by their first position; the others are dropped unread."""
    if plan.unit in ("chosen", "window"):
        return np.isin(first_positions, np.array(plan.chosen.get(partition, ()), np.int64))
    if plan.segment_keep == SCALE:
        return np.ones(first_positions.size, np.bool_)
    return opening_tosses(plan, partition, first_positions) < np.uint64(plan.segment_keep)


def opening_tosses(
    plan: Plan, partition: int, first_positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """What `opened` compares. Opened segments, ordered by it over all partitions, are in random order."""
    return _toss(plan.seed, 2 * partition + 1, first_positions)


def kept_rows(plan: Plan, partition: int, first: int, end: int) -> npt.NDArray[np.bool_]:
    """Which rows of [first, end), inside an opened segment, coins keep. Not for unit `key`."""
    if plan.row_keep == SCALE:
        return np.ones(end - first, np.bool_)
    return kept_positions(plan, partition, np.arange(first, end, dtype=np.int64))


def kept_positions(plan: Plan, partition: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows coins keep, by their positions."""
    return _toss(plan.seed, 2 * partition, positions) < np.uint64(plan.row_keep)


def kept_buckets(plan: Plan, buckets: int) -> npt.NDArray[np.bool_]:
    """Which buckets of the key are kept: the first `key_keep` in an order that the seed fixes.

    A higher `key_keep` keeps the same buckets and more, so that a cohort only grows or shrinks.
    """
    return bucket_ranks(plan, buckets) < plan.key_keep


def bucket_ranks(plan: Plan, buckets: int) -> npt.NDArray[np.int64]:
    """Each bucket's place in the order that the seed fixes."""
    return _ranks(plan.seed, buckets)


@lru_cache(maxsize=16)
def _ranks(seed: int, buckets: int) -> npt.NDArray[np.int64]:
    """The same for every segment of a grant, and a cohort's for all grants."""
    order = np.argsort(_toss(seed, 1 << 20, np.arange(buckets, dtype=np.int64)), kind="stable")
    ranks = np.empty(buckets, np.int64)
    ranks[order] = np.arange(buckets)
    ranks.setflags(write=False)
    return ranks


def _toss(seed: int, lane: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Uniform numbers below `SCALE`, one for each number; those of another seed or lane are independent."""
    with np.errstate(over="ignore"):
        # the salt is mixed itself: a sum of seed and number would toss the same coins one position further on
        salt = _mixed(np.array([(seed * _STEP + lane * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF], np.uint64))
        return _mixed((numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP) + salt) >> np.uint64(32)


def grant_seed(seed: int, grant: int) -> int:
    """The seed of a grant's coins: another for each grant, the same in every version of Python."""
    return int(_toss(seed, 1 << 21, np.array([grant]))[0]) & 0x7FFFFFFF


_STEP = 0x9E3779B97F4A7C15


def _mixed(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
