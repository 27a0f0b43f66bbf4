"""Calls policies. One that raises an exception takes no query with it: Penstock goes on without its word."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

_log = logging.getLogger(__name__)

SAY_EVERY_S = 60.0
"""A policy that fails at every grant is said so often, with the number of its failures."""

PASSES = KeyboardInterrupt
"""The one exception that is never caught: a user wants to end the process. `SystemExit` is caught, because a
policy that calls `sys.exit` must end nothing. `asyncio.CancelledError` is caught, because asyncio raises it
only where a coroutine waits, and a policy is called by a plain function."""

T = TypeVar("T")


def text_of(error: BaseException) -> str:
    """An exception for a message; its class alone if the exception cannot be written."""
    try:
        return f"{type(error).__name__}: {error}"
    except PASSES:
        raise
    except BaseException:  # a policy may raise a class of its own, and its __str__ may fail
        return type(error).__name__


class Guard:
    """Catches what policies raise, and says it."""

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def call(
        self,
        who: str,
        does: Callable[[], T],
        otherwise: Callable[[BaseException], T],
        instead: str,
        now_s: float,
    ) -> T:
        """The result of a policy's method, or another one if that raises an exception.

        Args:
            who: The policy, as a user knows it.
            does: Calls it.
            otherwise: What holds without it.
            instead: The same, for the log.
            now_s: On the timer.
        """
        try:
            return does()
        except PASSES:
            raise
        except BaseException as error:
            self._say(who, instead, now_s)
            return otherwise(error)

    def _say(self, who: str, instead: str, now_s: float) -> None:
        self._failures[who] = self._failures.get(who, 0) + 1
        if now_s - self._said_s.get(who, -SAY_EVERY_S) >= SAY_EVERY_S:
            self._said_s[who] = now_s
            _log.exception("%s failed (%d times so far); %s", who, self._failures[who], instead)
