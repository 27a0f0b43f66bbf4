"""How much time the classes ask for at a moment. The lengths of turns are planned from it."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from penstock.control.schedule.snapshot import BoolArray, Snapshot
from penstock.control.schedule.turns import Asking, Demand
from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.model import FloatArray


def demands_of(seen: Snapshot, also: Container[str] = (), tuning: Tuning = TUNING) -> dict[str, Demand]:
    """By name, the demands of classes that have work, and of the classes in `also` even without work.

    A row that reaches a query through shared streams of its own class waits for a turn at each query on its
    way. Each of these queries has a part of the target. The part of a batch without tasks is not left for
    turns.
    """
    count = len(seen.classes)
    active = seen.runs | seen.asks
    known = active & seen.ready
    working = active & (seen.runs | (seen.rows > 0))
    working_of = np.bincount(seen.cls[working], minlength=count)
    learning = set(seen.cls[working & ~seen.ready].tolist())
    counted = known & (working | (working_of == 0)[seen.cls])
    fixed_of, idle_of, turns_of = np.zeros(count), np.zeros(count), np.ones(count, np.int64)
    stretch_of = np.ones(count)
    np.maximum.at(fixed_of, seen.cls[counted], seen.fixed_s[counted])
    np.maximum.at(idle_of, seen.cls[counted], seen.idle_s[counted])
    np.maximum.at(stretch_of, seen.cls[counted], seen.stretch[counted])
    np.maximum.at(turns_of, seen.cls[active], seen.turns_of_row[active])
    targets_s = [
        max(
            cls.target_s * (1.0 - tuning.slack_fraction) / turns / (1.0 + cls.overrun_fraction) - idle_s,
            tuning.least_left * cls.target_s / turns,
        )
        for cls, turns, idle_s in zip(seen.classes, turns_of.tolist(), idle_of.tolist(), strict=True)
    ]
    usual, burst = _loads(seen, known, tuning.full_at * np.array(targets_s)[seen.cls])
    # a query whose rows only seem to be dear must not take the time of all others of its class
    equal = 1.0 / np.maximum(1, working_of)[seen.cls]
    usual, burst = (np.where(seen.young, np.minimum(load, equal), load) for load in (usual, burst))
    usual_of, burst_of = (
        np.bincount(seen.cls, weights=load, minlength=count).tolist() for load in (usual, burst)
    )
    demands: dict[str, Demand] = {}
    for i, (cls, target_s, working_queries, fixed_s) in enumerate(
        zip(seen.classes, targets_s, working_of.tolist(), fixed_of.tolist(), strict=True)
    ):
        if not working_queries and cls.name not in also:
            continue
        queries = max(1, working_queries)
        if i in learning:  # while a query's cost is learned, the load of its class is not known
            demands[cls.name] = Demand(target_s, None, queries, fixed_s)
            continue
        who = ((usual > 0.0) & (seen.cls == i)).nonzero()[0]
        keys = [seen.keys[k] for k in who.tolist()]
        demands[cls.name] = Demand(
            target_s,
            min(usual_of[i], float(queries)),
            queries,
            fixed_s,
            Asking(keys, who, usual[who], seen.fixed_s[who]),
            min(burst_of[i], float(queries)),
            float(idle_of[i]),
            float(stretch_of[i]),
        )
    return demands


def ticks_of(seen: Snapshot, demands: Container[str]) -> dict[str, Demand]:
    """By class without work in which a query wants a tick, the demand of the tick: a batch without rows."""
    found = {}
    wanting = seen.asks & seen.windows_wait
    for i in seen.classes_of(wanting):
        cls = seen.classes[i]
        if cls.name not in demands:
            fixed_s = float(seen.fixed_s[wanting & (seen.cls == i)].max(initial=0.0))
            found[cls.name] = Demand(cls.target_s, 0.0, 1, fixed_s)
    return found


def _loads(seen: Snapshot, known: BoolArray, between_s: FloatArray) -> FloatArray:
    """By query, the seconds of batch time that it asks for in a second. Batches begin `between_s` apart.

    The waiting rows of a query have come over the age of the oldest of them. Further rows come at a rate. The
    first row of the result is by the usual rate. The second is by the rate of the last moments, if that is
    higher.

    Args:
        seen: All queries.
        known: By query, whether its cost is known. The load of any other query is 0 here.
        between_s: By query, the time from the begin of a batch to the begin of the next.
    """
    usual_per_s, age_s = seen.usual_per_s, seen.age_s
    waits = ~seen.runs & ~np.isnan(age_s)
    rows = np.array([usual_per_s, np.maximum(usual_per_s, seen.burst_per_s)]) * between_s
    rows += np.where(waits, seen.rows, 0.0)
    over_s = between_s + np.where(waits, np.fmin(age_s, between_s), 0.0)
    loads: FloatArray = np.where(
        known & (rows >= 1.0), rows / over_s * seen.row_s + seen.fixed_s / between_s, 0.0
    )
    return loads
