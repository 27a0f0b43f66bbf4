"""Calls policies. If a policy raises an exception, no query ends: Penstock goes on without the policy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

_log = logging.getLogger(__name__)

SAY_EVERY_S = 60.0
"""Least time between two log messages about one failing policy. The message has the number of failures."""

PASSES = KeyboardInterrupt
"""The one exception that is never caught: a user wants to end the process. `SystemExit` is caught, because a
policy that calls `sys.exit` must end nothing. `asyncio.CancelledError` is caught, because asyncio raises it
only where a coroutine waits, and a policy is called by a plain function."""

T = TypeVar("T")


def text_of(error: BaseException) -> str:
    """Returns an exception as a text: its class and its message, or its class alone if `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except PASSES:
        raise
    except BaseException:  # a policy may raise a class of its own, and its __str__ may fail
        return type(error).__name__


class Guard:
    """Catches the exceptions of policies, and logs them."""

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
        """Calls a policy's method. Returns the method's result, or a substitute if it raises an exception.

        Args:
            who: The policy, in words that a user knows.
            does: Calls the policy's method.
            otherwise: Makes the substitute from the exception.
            instead: What happens without the policy, in words for the log.
            now_s: The present time on the timer.
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
