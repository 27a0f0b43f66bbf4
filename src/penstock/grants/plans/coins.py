"""Coins that fall the same for whoever tosses them: a hash of (seed, position) against a probability.

Probabilities are whole numbers of `SCALE`: what is written in an offset is exactly what is compared.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.grants.plans.protocol import Numbers
from penstock.vocabulary.mixing import MASK, STEP, mixed

Tosses = npt.NDArray[np.uint64]

SCALE = 1 << 32
"""Probabilities are in parts of this."""


def segment_tosses(seed: int, partition: int, first_positions: Numbers) -> Tosses:
    """One for each segment. Opened segments, ordered by it over all partitions, are in random order."""
    return _toss(seed, 2 * partition + 1, first_positions)


def row_tosses(seed: int, partition: int, positions: Numbers) -> Tosses:
    """One for each row."""
    return _toss(seed, 2 * partition, positions)


def grant_seed(seed: int, grant: int) -> int:
    """The seed of a grant's coins: another for each grant, the same in every version of Python."""
    return int(_toss(seed, 1 << 21, np.array([grant]))[0]) & 0x7FFFFFFF


@lru_cache(maxsize=16)
def bucket_ranks(seed: int, buckets: int) -> Numbers:
    """Each bucket's place in the order that the seed fixes.

    It is the same for every segment of a grant, and a cohort's for all grants.
    """
    order = np.argsort(_toss(seed, 1 << 20, np.arange(buckets, dtype=np.int64)), kind="stable")
    ranks = np.empty(buckets, np.int64)
    ranks[order] = np.arange(buckets)
    ranks.setflags(write=False)
    return ranks


def _toss(seed: int, lane: int, numbers: Numbers) -> Tosses:
    """Uniform numbers below `SCALE`, one for each number; those of another seed or lane are independent."""
    with np.errstate(over="ignore"):
        # the salt is mixed itself: a sum of seed and number would toss the same coins one position further on
        salt = mixed(np.array([(seed * STEP + lane * 0xD1B54A32D192ED03) & MASK], np.uint64))
        return mixed((numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP) + salt) >> np.uint64(32)
