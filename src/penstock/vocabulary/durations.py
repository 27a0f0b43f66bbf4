"""Durations as people write them, `2s` or `500ms`, in seconds."""

from __future__ import annotations

import re

from penstock.vocabulary.errors import InvalidInputError

_SECONDS_IN = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-zµ]*)\s*", re.IGNORECASE)
_HINT = "write 2, 2s, 500ms or 1min"


def parse_duration_s(value: object, name: str = "a duration", *, allow_zero: bool = False) -> float:
    """Reads a duration in seconds from a number (of seconds) or a text like `2s`, `500ms`, `1.5min`.

    Args:
        value: The value that the user wrote.
        name: Name of the value in an error.
        allow_zero: Whether 0 is allowed, as for the moment at which something starts.

    Raises:
        InvalidInputError: The value is not a duration, or is negative or infinite.
    """
    if isinstance(value, str):
        seconds = _from_text(value, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        # A whole number that is too long for a float counts as infinite.
        seconds = float(value) if abs(value) < 1e300 else float("inf")
    else:
        raise InvalidInputError(f"{name} must be a number with a unit", repr(value), _HINT)
    if allow_zero and seconds == 0:
        return 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidInputError(
            f"{name} must be {'0 or a' if allow_zero else 'a'} positive number of seconds",
            repr(value)[:40],
            _HINT,
        )
    return seconds


def _from_text(text: str, name: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"{name} must be a number with a unit", repr(text), _HINT)
    number, unit = float(match[1]), match[2].lower() or "s"
    if unit not in _SECONDS_IN:
        raise InvalidInputError(f"{name} must have a unit of us, ms, s, min or h", repr(text), _HINT)
    return number * _SECONDS_IN[unit]
