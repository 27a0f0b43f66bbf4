"""When batches that run one after the other must begin at the latest, so that all of them are in time."""

from __future__ import annotations

import numpy as np

from penstock.control.schedule.snapshot import BoolArray
from penstock.vocabulary.model import FloatArray


def latest_starts(
    due_s: FloatArray, batch_s: FloatArray, priority: FloatArray, which: BoolArray, parallel: float = 1.0
) -> FloatArray:
    """By query, in how many seconds its next batch must begin; infinite for queries without work.

    If the batch begins then, it is in time. The batches of its own class and of higher classes that are due
    later are in time, too. They run one after the other, in the order in which they are due.

    Args:
        due_s: By query, in how many seconds its batch must have ended.
        batch_s: By query, how long its batch takes.
        priority: By query, the priority of its class.
        which: By query, whether it has work.
        parallel: How many batches run at once, on average: a batch begins before the previous one has ended.
    """
    starts_s = np.full(due_s.size, np.inf)
    at = which.nonzero()[0]
    later_first = at[due_s[at].argsort(kind="stable")][::-1]
    levels, takes_s = priority[later_first], batch_s[later_first]
    begins_s = due_s[later_first] - takes_s
    for level in sorted(set(levels.tolist())):
        # start[i] = min(due[i] - batch[i], start[i - 1] - batch[i] / parallel), from the last one back
        upto_s = takes_s.cumsum() / parallel
        # this also writes the queries of higher levels, which the next rounds write anew
        starts_s[later_first] = np.minimum.accumulate(begins_s + upto_s) - upto_s
        higher = levels > level
        levels, later_first, takes_s, begins_s = (
            column[higher] for column in (levels, later_first, takes_s, begins_s)
        )
    return starts_s
