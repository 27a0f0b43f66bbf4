"""How the cores of a Spark application are expected to be used, from now until the running batches end.

Spark gives free cores to the tasks of the batch that began first. So batches are laid over the cores in their
order: each takes as many cores as it has tasks, or as many as those before it leave, until its expected core
seconds are used up. A batch takes no core before its tasks are planned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NOTHING_S = 1e-9
"""Core seconds that are only left by rounding."""


@dataclass(slots=True)
class Work:
    """The tasks of a running batch.

    Attributes:
        ready_s: On the timer, when its tasks can begin.
        left_s: Core seconds that are left.
        tasks: How many of its tasks can run at once.
        had_s: Core seconds that it is expected to have had.
        seen: How many of its tasks ran when the driver last said so, if it should have ended before.
    """

    ready_s: float
    left_s: float
    tasks: int
    had_s: float = 0.0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which the use of the cores does not change.

    Attributes:
        in_s: In how many seconds it begins. Moments of a timer that began long ago would be too coarse.
        until_s: In how many seconds it ends; infinite for the last stretch.
        used: By batch that has cores, how many.
    """

    in_s: float
    until_s: float
    used: dict[str, float]

    def core_s(self, until_s: float) -> dict[str, float]:
        """By batch, the core seconds that it has in this stretch before a moment."""
        seconds = min(self.until_s, until_s) - self.in_s
        return {key: cores * seconds for key, cores in self.used.items()}


class CoreUse:
    """The running batches of one application, in the order in which they began.

    Args:
        cores: Of the application's executors.
        now_s: On the timer.
    """

    def __init__(self, cores: int, now_s: float) -> None:
        self.cores = cores
        self._works: dict[str, Work] = {}
        self._now_s = now_s

    def pass_time(self, now_s: float) -> dict[str, float]:
        """Tasks run up to a moment, as far as is known.

        Returns:
            By batch, the core seconds that it is expected to have had since the last call.
        """
        had: dict[str, float] = {}
        passed_s = now_s - self._now_s
        for stretch in self._stretches(passed_s):
            for key, core_s in stretch.core_s(passed_s).items():
                had[key] = had.get(key, 0.0) + core_s
        for key, core_s in had.items():
            work = self._works[key]
            work.left_s, work.had_s = max(0.0, work.left_s - core_s), work.had_s + core_s
        self._now_s = max(self._now_s, now_s)
        return had

    def begin(self, key: str, work: Work) -> None:
        """A batch begins; it comes after those that run."""
        self._works[key] = work

    def change(self, key: str, work: Work) -> None:
        """More is known of a batch than when it began."""
        if key in self._works:
            work.had_s = self._works[key].had_s
            self._works[key] = work

    def seen(self, running: Mapping[str, int]) -> bool:
        """The driver says how many tasks of batches run now; returns whether that changes anything.

        It counts where a batch should have ended before: its tasks still hold their cores. Half of all
        batches take a little longer than expected, and of them nobody says so in time.

        Args:
            running: By batch, how many tasks; a batch without is missing.
        """
        before = self.overdue()
        for key, work in self._works.items():
            ended = work.left_s <= _NOTHING_S and work.ready_s <= self._now_s
            work.seen = running.get(key, 0) if ended else 0
        return self.overdue() != before

    def overdue(self) -> dict[str, float]:
        """By batch that should have ended before, how many cores it still holds."""
        return {key: float(work.seen) for key, work in self._works.items() if work.seen}

    def tasks_ended(self, key: str, core_s: float, left_s: float) -> None:
        """Tasks of a batch have ended, and it is known what they took.

        What they took beyond what was expected, other batches did not have. Without this correction more
        batches would begin than the cores can do whenever batches take longer than expected.

        Args:
            key: The batch.
            core_s: Core seconds of all its tasks that have ended.
            left_s: Core seconds of its other tasks.
        """
        if key not in self._works:
            return
        mine = self._works[key]
        beyond_s = core_s - mine.had_s
        mine.left_s, mine.had_s, mine.seen = left_s, core_s, 0
        for other, work in self._works.items():
            if other != key and work.ready_s < self._now_s and not work.seen:  # of those it is known
                change_s = min(beyond_s, work.had_s) if beyond_s > 0.0 else max(beyond_s, -work.left_s)
                work.left_s, work.had_s = work.left_s + change_s, work.had_s - change_s
                beyond_s -= change_s

    def of(self, key: str) -> Work | None:
        """The tasks of a batch, if it runs."""
        return self._works.get(key)

    def end(self, key: str) -> None:
        """A batch has ended."""
        self._works.pop(key, None)

    # -- what is expected -----------------------------------------------------------------------

    def free_at(self, at_s: float) -> float:
        """How many cores are expected to be free at a moment, if no other batch begins."""
        for stretch in self._stretches():
            if at_s - self._now_s < stretch.until_s:
                return self.cores - sum(stretch.used.values())
        return float(self.cores)

    def frees_s(self, least: float = 1.0) -> float:
        """On the timer, when so many cores are first expected to be free, if no other batch begins."""
        for stretch in self._stretches():
            if self.cores - sum(stretch.used.values()) >= least:
                return self._now_s + stretch.in_s
        return math.inf

    def ends_s(self) -> dict[str, float]:
        """By batch, on the timer, when its last task is expected to end; infinite without cores."""
        found = {}
        for key, work in self._works.items():
            found[key] = math.inf if work.left_s > _NOTHING_S else max(self._now_s, work.ready_s)
        for stretch in self._stretches():
            for key in stretch.used:
                found[key] = self._now_s + stretch.until_s
        return found  # of batches that are overdue nobody knows when they end

    def _stretches(self, until_s: float = math.inf) -> Iterator[Stretch]:
        """The use of the cores for so many seconds; a last stretch has no end, and only overdue batches."""
        overdue = self.overdue()
        left = {key: work.left_s for key, work in self._works.items() if work.left_s > _NOTHING_S}
        in_s = 0.0
        while left and self.cores > 0 and in_s < until_s:
            free, used, ends_s = self.cores - sum(overdue.values()), dict(overdue), math.inf
            for key, left_s in left.items():
                ready_s = self._works[key].ready_s - self._now_s
                if ready_s > in_s:
                    ends_s = min(ends_s, ready_s)
                elif free > 0.0:
                    used[key] = taken = min(free, float(self._works[key].tasks))
                    free -= taken
                    ends_s = min(ends_s, in_s + left_s / taken)
            stretch = Stretch(in_s, ends_s, used)
            yield stretch
            for key, core_s in stretch.core_s(ends_s).items():
                if key in left:
                    left[key] -= core_s
            # what is left by rounding is nothing: it would make stretches without end
            left = {key: each for key, each in left.items() if each > _NOTHING_S}
            in_s = ends_s
        if in_s < until_s:
            yield Stretch(in_s, math.inf, overdue)
