"""The finaliser of splitmix64: whole numbers that look random, the same on every machine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STEP = 0x9E3779B97F4A7C15
"""The odd constant by which splitmix64 steps; numbers are multiplied by it before they are mixed."""
MASK = 0xFFFFFFFFFFFFFFFF


def mixed(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mixes the bits of each number."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def mixed_number(z: int) -> int:
    """Mixes the bits of one number of 64 bits, as `mixed` does those of many."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)
