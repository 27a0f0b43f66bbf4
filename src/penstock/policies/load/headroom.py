"""Headroom estimators: they learn from measurements how much of the CPU the queries really get."""

from __future__ import annotations

import math

SMALLEST_HEADROOM = 0.01
LARGEST_HEADROOM = 64.0
"""A headroom is above one if several cores are used. The bound only stops an estimate that runs away."""


def clamp_headroom(headroom: float) -> float:
    return min(LARGEST_HEADROOM, max(SMALLEST_HEADROOM, headroom))


def from_converged_delay(headroom: float, delay_target_s: float, converged_delay_s: float) -> float:
    """SEaMLeSS (pham2016 4.2.2): headroom * D / D'.

    While rows are shed, a wrong headroom makes the delay converge to D' instead of D, in proportion.
    """
    if converged_delay_s <= 0:
        return headroom
    return clamp_headroom(headroom * delay_target_s / converged_delay_s)


def toward_load(headroom: float, load: float) -> float:
    """ALoMa (pham2016 eq. 5.1): moves toward the load by a part of the gap, a smaller part of a wider gap.

    Let z be the gap in percent of the headroom, at least 1. The step is log2(z + 1) / z of the gap.
    """
    gap = abs(load - headroom)
    z = max(1.0, 100.0 * gap / headroom)
    step = math.log2(z + 1) / z * gap
    return clamp_headroom(headroom + step if load > headroom else headroom - step)


def from_busy_time(
    headroom: float | None, work_s: float, busy_s: float, period_s: float, memory_s: float
) -> float | None:
    """Deadline: the CPU seconds of work in a second in which there was work, averaged over about `memory_s`.

    The estimate needs no overload and no converged delay: any busy period is enough.
    """
    if busy_s <= 0.0 or work_s <= 0.0:
        return headroom
    measured = clamp_headroom(work_s / busy_s)
    if headroom is None:
        return measured
    weight = min(1.0, busy_s / period_s) * (1.0 - math.exp(-period_s / memory_s))
    return headroom + weight * (measured - headroom)
