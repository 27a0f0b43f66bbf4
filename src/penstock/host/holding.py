"""How long a question may be held before its source hears "nothing yet"."""

from __future__ import annotations

import math

HOLD_S, LONGEST_HOLD_S, QUESTIONS_PER_S = 0.1, 1.0, 40.0
"""The control plane holds a question for `HOLD_S`: Spark is slow to stop a query that waits for its source.

A question costs milliseconds in three processes. Thirty idle queries took half of two cores. So the control
plane holds questions longer, up to `LONGEST_HOLD_S`, if it would get more than `QUESTIONS_PER_S`."""
FETCH_S = 1.0
"""Time limit for reading rows that a shedder needs. After it, the grant is decided without the shedder."""


def hold_s(waiting: int, timeout_s: float = math.inf) -> float:
    """Returns how long the control plane may hold a question.

    Args:
        waiting: Number of questions that the control plane holds.
        timeout_s: The source takes the control plane for silent after this time.
    """
    return min(max(HOLD_S, waiting / QUESTIONS_PER_S), LONGEST_HOLD_S, timeout_s / 2)
