"""The latest moments at which batches must begin, if they run one after the other, for all to be in time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Job:
    """The next batch of a query.

    Attributes:
        due_s: In how many seconds it must have ended.
        key: Of the query.
        batch_s: How long it takes.
        priority: Of its class.
    """

    due_s: float
    key: str
    batch_s: float
    priority: float


@dataclass(frozen=True, slots=True)
class Latest:
    """By query, in how many seconds its batch must begin.

    Attributes:
        starts_s: In how many seconds, so that it and all that are due later, of its own class and of higher
            ones, are in time.
    """

    starts_s: Mapping[str, float] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return key in self.starts_s

    def is_late_after(self, key: str, wait_s: float) -> bool:
        """Whether a query, or one that is due after it, would be late if it began only then."""
        return key in self.starts_s and self.starts_s[key] < wait_s


def latest_starts(jobs: Iterable[Job], parallel: float = 1.0) -> Latest:
    """Those of one class and of higher ones run one after the other, the one that is due first first.

    Args:
        jobs: The next batches of the queries that have work.
        parallel: Batches that run at once, on average: one begins before the other has ended.
    """
    by_due = sorted(jobs, key=lambda job: (job.due_s, job.key), reverse=True)
    starts_s: dict[str, float] = {}
    for priority in {job.priority for job in by_due}:
        start_s = math.inf
        for job in by_due:
            if job.priority < priority:
                continue
            start_s = min(job.due_s - job.batch_s, start_s - job.batch_s / parallel)
            if job.priority == priority:
                starts_s[job.key] = start_s
    return Latest(starts_s)
