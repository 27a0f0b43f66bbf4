"""Waiting for something to come about: the only way in which a test may wait."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

PATIENCE_S = 300.0
"""No verdict depends on it: only something that is stuck makes a test wait so long."""
PROCESS_S = 1200.0
"""The same for a process that does many things, as a whole run on Spark."""

Found = TypeVar("Found")


def until(
    done: Callable[[], Found],
    what: str = "it",
    state: Callable[[], object] | None = None,
    patience_s: float = PATIENCE_S,
) -> Found:
    """What `done` gives, once it gives something.

    Args:
        done: Asked again and again.
        what: What is waited for, for the message if it never comes.
        state: Tells for that message what there is instead; the last answer of `done` by default.
        patience_s: When to give up.
    """
    deadline = time.monotonic() + patience_s
    while not (found := done()):
        if time.monotonic() >= deadline:
            last = found if state is None else state()
            raise AssertionError(f"{what} did not come about within {patience_s:g} s; last seen: {last!r}")
        time.sleep(0.01)
    return found


def ran(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; gives what it printed."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PROCESS_S, **options)
