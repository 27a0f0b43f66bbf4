"""Durations as people write them, in seconds: `2s` or `500ms` in files, `10 seconds` in Spark SQL."""

from __future__ import annotations

import re

from penstock.vocabulary.errors import InvalidInputError

_SECONDS_IN = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-zµ]*)\s*", re.IGNORECASE)
_HINT = "write 2, 2s, 500ms or 1min"
_SECONDS_IN_SQL = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_PART = re.compile(rf"\s*(\d+)\s*({'|'.join(_SECONDS_IN_SQL)})s?\s*", re.IGNORECASE)


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


def parse_interval_s(text: str, name: str = "a window's length") -> float:
    """Reads an interval of Spark SQL in seconds, such as `10 seconds` or `1 hour 30 minutes`.

    Args:
        text: The text that the user wrote.
        name: Name of the value in an error.

    Raises:
        InvalidInputError: The text is no interval, or has a unit whose length varies, such as months.
    """
    body = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    parts = list(_PART.finditer(body))
    if not parts or "".join(part[0] for part in parts) != body:
        raise InvalidInputError(
            f"{name} is an interval of fixed length", repr(text), "for example '10 seconds'"
        )
    return sum(int(part[1]) * _SECONDS_IN_SQL[part[2].lower()] for part in parts)


def _from_text(text: str, name: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidInputError(f"{name} must be a number with a unit", repr(text), _HINT)
    number, unit = float(match[1]), match[2].lower() or "s"
    if unit not in _SECONDS_IN:
        raise InvalidInputError(f"{name} must have a unit of us, ms, s, min or h", repr(text), _HINT)
    return number * _SECONDS_IN[unit]
