"""How much of the time each class asks for and uses, smoothed. The capacity policy divides the time by it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from penstock.control.schedule.turns import Demand


class Usage:
    """How much of the time each class usually asks for, and how much it usually uses."""

    def __init__(self) -> None:
        self.uses: dict[str, float] = {}
        """By class, the seconds of batch time that it usually uses in a second."""
        self._loads: dict[str, float] = {}
        """By class, the seconds of batch time that it usually asks for in a second."""
        self._used_s: dict[str, float] = {}
        """By class, the batch time that it had used when the time was last divided."""

    def measure(
        self, demands: Mapping[str, Demand], used_s: Mapping[str, float], passed_s: float
    ) -> dict[str, float | None]:
        """By class, the seconds of batch time that it asks for in a second; `None` if not known yet.

        Of three figures the largest counts: the load of a burst, the usual load, and the usual use. Among
        many queries, batches cannot be as full as their targets allow, and the use is larger than the load.

        Args:
            demands: What the classes ask for now.
            used_s: By class, the batch time that it has used since the start.
            passed_s: How long ago the time was last divided.
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
