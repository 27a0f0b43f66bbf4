"""Which windows are continued, which are broken, and which are undecided, by the plans of earlier grants.

The plan in a grant's offset says what the grant decided about windows. The next grant continues from there,
also in a control plane that was started anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock.grants.plans import ShedPlan, WindowPlan
from penstock.grants.plans.values import NO_WINDOW
from penstock.policies.quality.sic import BoolArray, IntArray

REMEMBERED = 32
"""A plan still names windows that were kept before, up to this many windows back."""


@dataclass(frozen=True, slots=True)
class WindowHistory:
    """What earlier grants of a query decided about windows.

    Attributes:
        kept: Numbers of windows that have begun and were kept.
        decided: The highest number that a grant decided about; `None` where no grant decided about windows.
        whole_upto: All rows of windows up to this number were kept, because nothing was shed; `None` if no
            window is known to be whole.
    """

    kept: frozenset[int] = frozenset()
    decided: int | None = None
    whole_upto: int | None = None


def history_of(plans: Iterable[ShedPlan], size_us: int, whole_upto: int | None) -> WindowHistory:
    """Reads the history from the plans of the readers' last grants.

    Args:
        plans: The plans. A plan for windows of another size says nothing about these windows.
        size_us: How long a window is.
        whole_upto: See `WindowHistory`.
    """
    kept: set[int] = set()
    decided: int | None = None
    for plan in plans:
        if isinstance(plan, WindowPlan) and plan.size_us == size_us:
            kept |= set(plan.windows)
            decided = plan.decided if decided is None else max(decided, plan.decided)
    return WindowHistory(frozenset(kept), decided, whole_upto)


@dataclass(frozen=True, slots=True, eq=False)
class WaitingWindows:
    """The windows of waiting rows, an array a field.

    Attributes:
        number: The number of each window, in rising order.
        continued: Whether the window was kept by an earlier grant: the rest of its rows is kept, too.
        broken: Whether rows of the window were shed before, or are late. The rest of its rows is shed, too,
            because an answer from the rest would be wrong.
    """

    number: IntArray
    continued: BoolArray
    broken: BoolArray

    @property
    def undecided(self) -> BoolArray:
        """Windows that the shedder may choose among."""
        free: BoolArray = ~(self.continued | self.broken)
        return free


def waiting_windows(waiting: IntArray, late: IntArray, history: WindowHistory) -> WaitingWindows:
    """Finds out what earlier grants and late rows have decided about the windows of waiting rows.

    Args:
        waiting: By waiting row, the number of its window.
        late: Numbers of windows that have late rows.
        history: What earlier grants decided.
    """
    number = np.unique(waiting)
    kept = np.isin(number, np.array(sorted(history.kept), np.int64))
    if history.whole_upto is not None:
        kept |= (number <= history.whole_upto) & (number != NO_WINDOW)
    broken = np.isin(number, late)
    if history.decided is not None:
        broken |= (number <= history.decided) & ~kept & (number != NO_WINDOW)
    return WaitingWindows(number, kept & ~broken, broken)


def windows_of_plan(windows: WaitingWindows, kept: BoolArray, history: WindowHistory) -> tuple[int, ...]:
    """Numbers of windows that a plan names as kept.

    These are the kept windows of waiting rows, and recent windows that an earlier grant kept. Rows of such
    recent windows may still come, out of order.

    Args:
        windows: The waiting windows.
        kept: Which of them are kept.
        history: What earlier grants decided.
    """
    since = highest_decided(windows.number, history) - REMEMBERED
    recent = {number for number in history.kept if number > since} - set(windows.number.tolist())
    return tuple(sorted({*windows.number[kept].tolist(), *recent}))


def highest_decided(number: IntArray, history: WindowHistory) -> int:
    """The highest window that this grant or an earlier one decides about.

    Args:
        number: Numbers of the waiting windows, in rising order.
        history: What earlier grants decided.
    """
    seen = number[number != NO_WINDOW]
    known = [int(seen[-1])] if seen.size else []
    return max([*known, *([] if history.decided is None else [history.decided])], default=0)


def is_past(history: WindowHistory, waiting: IntArray) -> bool:
    """Whether no waiting row is in a window that an earlier grant decided about: the history has served.

    Args:
        history: What earlier grants decided.
        waiting: By waiting row, the number of its window.
    """
    return history.decided is None or not bool(((waiting <= history.decided) & (waiting != NO_WINDOW)).any())
