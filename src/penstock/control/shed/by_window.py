"""Shedding by windows: which have begun and go on, which are broken, and which are the shedder's to choose.

What a grant decided about windows is in its offset, so the next one goes on with it, also in a control plane
that was started anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.grants.plans import ShedPlan, WindowPlan
from penstock.grants.plans.values import NO_WINDOW
from penstock.policies.quality.sic import BoolArray, IntArray

PURE_WINDOWS = 1 << 40
"""The shedder takes numbers below this: it numbers the windows of several queries one after the other."""

REMEMBERED = 32
"""So many windows back a plan still names those that were kept before."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What earlier grants of a query decided about windows.

    Attributes:
        kept: Numbers of windows that have begun and were kept.
        decided: The highest number that was decided about; `None` where nothing was.
        whole_upto: Up to this number windows that have begun were kept with all others; `None` for none.
    """

    kept: frozenset[int] = frozenset()
    decided: int | None = None
    whole_upto: int | None = None


def begun(plans: Iterable[ShedPlan], size_us: int, whole_upto: int | None) -> Begun:
    """By the plans of the readers' last grants; plans of windows of another size say nothing."""
    kept: set[int] = set()
    decided: int | None = None
    for plan in plans:
        if isinstance(plan, WindowPlan) and plan.size_us == size_us:
            kept |= set(plan.windows)
            decided = plan.decided if decided is None else max(decided, plan.decided)
    return Begun(frozenset(kept), decided, whole_upto)


@dataclass(frozen=True, slots=True, eq=False)
class Fates:
    """Of the waiting windows, by number.

    Attributes:
        number: Each, in order.
        go_on: They have begun and are kept.
        broken: Something of them was shed before, or is late: the rest would be a wrong answer.
    """

    number: IntArray
    go_on: BoolArray
    broken: BoolArray

    @property
    def fresh(self) -> BoolArray:
        """They are the shedder's to choose."""
        free: BoolArray = ~(self.go_on | self.broken)
        return free


def fates(waiting: IntArray, late: IntArray, before: Begun) -> Fates:
    """What is settled about windows already.

    Args:
        waiting: Numbers of the windows of waiting rows.
        late: Those of rows that are late.
        before: What was decided.
    """
    number = np.unique(waiting)
    kept = np.isin(number, np.array(sorted(before.kept), np.int64))
    if before.whole_upto is not None:
        kept |= (number <= before.whole_upto) & (number != NO_WINDOW)
    broken = np.isin(number, late)
    if before.decided is not None:
        broken |= (number <= before.decided) & ~kept & (number != NO_WINDOW)
    return Fates(number, kept & ~broken, broken)


def kept_windows(found: Fates, kept: BoolArray, before: Begun) -> tuple[int, ...]:
    """Numbers for the plan: those that are kept, and recent ones that were, whose rows may come out of order.

    Args:
        found: The waiting windows.
        kept: Which of them are kept.
        before: What was decided.
    """
    since = highest(found.number, before) - REMEMBERED
    recent = {number for number in before.kept if number > since} - set(found.number.tolist())
    return tuple(sorted({*found.number[kept].tolist(), *recent}))


def highest(number: IntArray, before: Begun) -> int:
    """The highest number that is decided about with this grant."""
    seen = number[number != NO_WINDOW]
    known = [int(seen[-1])] if seen.size else []
    return max([*known, *([] if before.decided is None else [before.decided])], default=0)


def only_new(waiting: IntArray, before: Begun) -> bool:
    """Whether nothing that waits is of windows that were decided about: then what was shed is past."""
    return before.decided is None or not bool(((waiting <= before.decided) & (waiting != NO_WINDOW)).any())
