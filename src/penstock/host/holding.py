"""How long a question may be held before its source hears "nothing yet"."""

from __future__ import annotations

import math

HOLD_S, LONGEST_HOLD_S, QUESTIONS_PER_S = 0.1, 1.0, 40.0
"""A question is answered within the first, as Spark stops a query that waits for its source only slowly. Each
costs milliseconds in three processes, and thirty queries that only waited took half of two cores: where more
than so many would be asked in a second they are held longer."""
FETCH_S = 1.0
"""Rows that a shedder needs are read in less; where they are not, the grant goes on without the shedder."""


def hold_s(waiting: int, timeout_s: float = math.inf) -> float:
    """How long a question may be held while so many are; the one who asks takes longer for silence."""
    return min(max(HOLD_S, waiting / QUESTIONS_PER_S), LONGEST_HOLD_S, timeout_s / 2)
