"""How many tuples may be kept: the cost model of a tuple of fiscato2012 (eq. 5.2 and 5.3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.vocabulary.errors import InvalidInputError, require_positive


@dataclass(frozen=True, slots=True)
class TupleCostConfig:
    """Settings of the cost model.

    Attributes:
        memory: How many intervals the moving average takes in.
    """

    memory: int = 10

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise InvalidInputError(
                "the moving average has one interval at the least", self.memory, "10 is usual"
            )

    def build(self) -> TupleCost:
        return TupleCost(self)


class TupleCost:
    """Average cost of a tuple over the last intervals, whatever query it belongs to.

        cost_per_row_s = measured_s / rows          (eq. 5.2: the measured interval, not the nominal one)
        keep_rows      = interval_s / cost_per_row_s   (eq. 5.3)

    Both are averaged over the last `memory` intervals. `measured_s` must be the time in which the node had
    work. Otherwise an idle node would count its idle time as cost, and would shed for ever after.
    """

    def __init__(self, config: TupleCostConfig | None = None) -> None:
        self.config = config or TupleCostConfig()
        self._rows: deque[float] = deque(maxlen=self.config.memory)
        self._busy_s: deque[float] = deque(maxlen=self.config.memory)

    def measure(self, rows: float, measured_s: float) -> None:
        """Takes in an interval; an idle interval is ignored."""
        if rows < 0 or measured_s < 0:
            raise InvalidInputError(
                "rows and time are 0 or more", f"{rows} rows in {measured_s} s", "of the last interval"
            )
        if measured_s > 0:
            self._rows.append(rows)
            self._busy_s.append(measured_s)

    @property
    def cost_per_row_s(self) -> float | None:
        """C_T; `None` before anything was processed."""
        rows = sum(self._rows)
        return sum(self._busy_s) / rows if rows > 0 else None

    def keep_rows(self, interval_s: float) -> float | None:
        """N_keep of the coming interval; `None` before anything was processed."""
        require_positive("the interval", interval_s, "the time until the next decision")
        cost_s = self.cost_per_row_s
        return None if cost_s is None else interval_s / cost_s
