"""Finds the windows of a SQL text by its `window(column, 'length', 'slide')`. Only Spark parses SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.vocabulary.durations import parse_interval_s

_WINDOW = re.compile(
    r"\bwindow\s*\(\s*(?P<column>[\w.`]+)\s*,\s*'(?P<length>[^']+)'\s*(?:,\s*'(?P<slide>[^']+)'\s*)?\)",
    re.IGNORECASE,
)
_START = re.compile(r"\bwindow\.start\s+(?:as\s+)?(\w+)", re.IGNORECASE)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


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
            parse_interval_s(match["length"]),
            None if match["slide"] is None else parse_interval_s(match["slide"]),
        )
        for match in _WINDOW.finditer(text)
    }
    if len(found) != 1:
        return None
    start = _START.search(text)
    (only,) = found
    return SqlWindow(only.column, only.length_s, only.slide_s, start[1] if start else None)
