"""How much of the time each class asks for and uses, smoothed: what the capacity policy divides by."""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock.control.schedule.turns import Demand


class Usage:
    """What classes usually ask for, and usually use."""

    def __init__(self) -> None:
        self.uses: dict[str, float] = {}
        """By class, seconds of batches that it usually has in a second."""
        self._loads: dict[str, float] = {}
        """By class, what it usually asks for."""
        self._used_s: dict[str, float] = {}
        """By class, what it had used when the time was last divided."""

    def measure(
        self, demands: Mapping[str, Demand], used_s: Mapping[str, float], passed_s: float
    ) -> dict[str, float | None]:
        """By class, seconds of batches a second that it asks for; `None` where that is not known yet.

        What a class asks for in a burst, usually, or what it uses, if that is more: among many queries
        batches cannot be as full as their targets allow.

        Args:
            demands: What the classes ask for now.
            used_s: By class, seconds of batch time since the start.
            passed_s: Since the last time.
        """
        found: dict[str, float | None] = {}
        for name, demand in demands.items():
            weight = 1.0 - math.exp(-passed_s / demand.target_s)
            use = _smooth(self.uses, name, self._use_since(name, used_s[name], passed_s), weight)
            if demand.load is None:
                found[name] = None
                continue
            found[name] = max(demand.burst, _smooth(self._loads, name, demand.load, weight), use)
        return found

    def _use_since(self, cls: str, used_s: float, passed_s: float) -> float:
        since_s = used_s - self._used_s.get(cls, used_s)
        self._used_s[cls] = used_s
        return since_s / passed_s if passed_s > 0.0 else 0.0


def _smooth(usual: dict[str, float], cls: str, value: float, weight: float) -> float:
    before = usual.get(cls, value)
    usual[cls] = before + weight * (value - before)
    return usual[cls]
