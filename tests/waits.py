"""Waiting for something to come about, without a sleep that is too short or too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
"""Only something broken lets a test wait so long."""

Found = TypeVar("Found")


def until(done: Callable[[], Found], what: str = "it", patience_s: float = PATIENCE_S) -> Found:
    """What `done` gives, once it gives something."""
    deadline = time.monotonic() + patience_s
    while not (found := done()):
        assert time.monotonic() < deadline, f"{what} never came about"
        time.sleep(0.005)
    return found
