"""What the classes ask for at the moment: the input of the turns' lengths."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from penstock.control.schedule.snapshot import IntArray, Snapshot
from penstock.control.schedule.turns import Demand
from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.model import FloatArray


def demands_of(seen: Snapshot, also: Container[str] = (), tuning: Tuning = TUNING) -> dict[str, Demand]:
    """The demands of classes with work, by name; those in `also` are there whether or not they have any.

    A row that reaches a query by way of a shared stream of its own class waits for a turn at each query on
    its way: of the target every one of them has its part.
    """
    demands: dict[str, Demand] = {}
    active = seen.runs | seen.asks
    busy = active & (seen.runs | (seen.rows > 0))
    for i, cls in enumerate(seen.classes):
        mine = active & (seen.cls == i)
        working = busy & mine
        if not working.any() and cls.name not in also:
            continue
        turns = int(seen.turns_of_row[mine].max(initial=1))
        target_s = cls.target_s * (1.0 - tuning.slack_fraction) / turns / (1.0 + cls.overrun_fraction)
        known = mine & seen.ready
        counted = known & working if working.any() else known
        fixed_s, count = float(seen.fixed_s[counted].max(initial=0.0)), max(1, int(working.sum()))
        if not seen.ready[working].all():  # what a query asks for that is still being learned, nobody knows
            demands[cls.name] = Demand(target_s, None, count, fixed_s)
            continue
        at, between_s = np.flatnonzero(known), tuning.full_at * target_s
        usual_per_s = seen.usual_per_s[at]
        burst = _loads(seen, at, np.maximum(usual_per_s, seen.burst_per_s[at]), between_s)
        load = _loads(seen, at, usual_per_s, between_s)
        at, load = at[load > 0.0], load[load > 0.0].tolist()
        keys = [seen.keys[k] for k in at.tolist()]
        demands[cls.name] = Demand(
            target_s,
            min(sum(load), float(count)),
            count,
            fixed_s,
            dict(zip(keys, load, strict=True)),
            min(sum(burst.tolist()), float(count)),
            dict(zip(keys, seen.fixed_s[at].tolist(), strict=True)),
        )
    return demands


def ticks_of(seen: Snapshot, demands: Container[str]) -> dict[str, Demand]:
    """By class without work in which a query wants a tick, what that asks for: a batch without rows."""
    found = {}
    wanting = seen.asks & seen.windows_wait
    for i in seen.classes_of(wanting):
        cls = seen.classes[i]
        if cls.name not in demands:
            fixed_s = float(seen.fixed_s[wanting & (seen.cls == i)].max(initial=0.0))
            found[cls.name] = Demand(cls.target_s, 0.0, 1, fixed_s)
    return found


def _loads(seen: Snapshot, at: IntArray, rate_per_s: FloatArray, between_s: float) -> FloatArray:
    """By query of some, batch time that it asks for in a second, in batches that begin `between_s` apart.

    What waits came in over the age of its oldest row, what comes is known by its rate.
    """
    age_s = seen.age_s[at]
    waits = ~seen.runs[at] & ~np.isnan(age_s)
    rows = rate_per_s * between_s + np.where(waits, seen.rows[at], 0.0)
    over_s = between_s + np.where(waits, np.fmin(age_s, between_s), 0.0)
    loads: FloatArray = np.where(
        rows >= 1.0, rows / over_s * seen.row_s[at] + seen.fixed_s[at] / between_s, 0.0
    )
    return loads
