"""Finds the windows of a SQL text by its `window(column, 'length', 'slide')`. Only Spark parses SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.vocabulary.errors import InvalidInputError

_WINDOW = re.compile(
    r"\bwindow\s*\(\s*(?P<column>[\w.`]+)\s*,\s*'(?P<length>[^']+)'\s*(?:,\s*'(?P<slide>[^']+)'\s*)?\)",
    re.IGNORECASE,
)
_START = re.compile(r"\bwindow\.start\s+(?:as\s+)?(\w+)", re.IGNORECASE)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_SECONDS_IN = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_PART = re.compile(rf"\s*(\d+)\s*({'|'.join(_SECONDS_IN)})s?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SqlWindow:
    """A window of a SQL text: event-time column, length, slide, and the result's column with its start."""

    column: str
    length_s: float
    slide_s: float | None = None
    start: str | None = None


def window_in(sql: str) -> SqlWindow | None:
    """The windows of a SQL text; `None` if there are none, or several kinds."""
    text = _COMMENT.sub(" ", sql)
    found = {
        SqlWindow(
            match["column"].replace("`", "").rpartition(".")[2],
            interval_s(match["length"]),
            None if match["slide"] is None else interval_s(match["slide"]),
        )
        for match in _WINDOW.finditer(text)
    }
    if len(found) != 1:
        return None
    start = _START.search(text)
    (only,) = found
    return SqlWindow(only.column, only.length_s, only.slide_s, start[1] if start else None)


def interval_s(text: str) -> float:
    """An interval as Spark writes it, such as `10 seconds` or `1 hour 30 minutes`, in seconds."""
    body = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    parts = list(_PART.finditer(body))
    if not parts or "".join(part[0] for part in parts) != body:
        raise InvalidInputError(
            "a window's length is an interval of fixed length", repr(text), "for example '10 seconds'"
        )
    return sum(int(part[1]) * _SECONDS_IN[part[2].lower()] for part in parts)
