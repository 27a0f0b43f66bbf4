"""Coins that fall the same whoever tosses them: a hash of (seed, position) is compared with a probability.

Probabilities are whole numbers, in parts of `SCALE`: the number in an offset is exactly what is compared.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.grants.plans.protocol import Numbers
from penstock.vocabulary.mixing import MASK, STEP, mixed, mixed_number

Tosses = npt.NDArray[np.uint64]

SCALE = 1 << 32
"""Probabilities are in parts of this."""


def segment_tosses(seed: int, partition: int, first_positions: Numbers) -> Tosses:
    """One toss for each segment. Opened segments of all partitions, sorted by toss, are in random order."""
    return _toss(seed, 2 * partition + 1, first_positions)


def row_tosses(seed: int, partition: int, positions: Numbers) -> Tosses:
    """One toss for each row."""
    return _toss(seed, 2 * partition, positions)


def grant_seed(seed: int, grant: int) -> int:
    """The seed of a grant's coins; it differs from grant to grant, not from one Python version to another."""
    stepped = (grant + 1) * STEP + int(_salt(seed, 1 << 21))  # `_toss` of one number
    return (mixed_number(stepped & MASK) >> 32) & 0x7FFFFFFF


@lru_cache(maxsize=16)
def bucket_ranks(seed: int, buckets: int) -> Numbers:
    """Each bucket's rank in the order that the seed fixes.

    All segments of a grant have the same order; all grants of a cohort have the same order.
    """
    order = np.argsort(_toss(seed, 1 << 20, np.arange(buckets, dtype=np.int64)), kind="stable")
    ranks = np.empty(buckets, np.int64)
    ranks[order] = np.arange(buckets)
    ranks.setflags(write=False)
    return ranks


def _toss(seed: int, lane: int, numbers: Numbers) -> Tosses:
    """One uniform number below `SCALE` for each number; tosses of another seed or lane are independent."""
    stepped = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP)
    return mixed(stepped + _salt(seed, lane)) >> np.uint64(32)


@lru_cache(maxsize=256)
def _salt(seed: int, lane: int) -> np.uint64:
    """Mixed too: with seed + number, the next seed would toss the same coins one position off."""
    return np.uint64(mixed_number((seed * STEP + lane * 0xD1B54A32D192ED03) & MASK))
