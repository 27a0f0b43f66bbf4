"""The O point: where accumulated queueing begins (pham2016 5.2.1 and 5.2.3)."""

from __future__ import annotations

import numpy as np

from penstock.vocabulary.model import FloatArray


def track_smallest(smallest_s: FloatArray, delay_s: FloatArray) -> FloatArray:
    """By output, the smallest delay so far; NaN if no delay was seen yet."""
    return np.fmin(smallest_s, delay_s)


def refresh_smallest(smallest_s: FloatArray) -> FloatArray:
    """Doubles the smallest delays, so that a system that has changed can set new ones."""
    return smallest_s * 2.0


def is_accumulating(smallest_s: FloatArray, delay_s: FloatArray) -> bool:
    """Whether any output has passed its O point: twice its smallest delay."""
    return bool((delay_s > 2.0 * smallest_s).any())
