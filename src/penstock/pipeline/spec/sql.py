"""Finds the streams that a SQL text reads, by the names after FROM and JOIN. Only Spark really parses SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMMENT_OR_TEXT = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAME = r"(?:[A-Za-z_]\w*|`[^`]+`)"
_ALIASED = rf"{_NAME}(?:\s+(?:as\s+)?(?!(?:join|where|group|on|left|right|inner|full|cross)\b){_NAME})?"
_TABLES = re.compile(
    rf"\b(?:from|join)\s+(?:stream\s*\(?\s*)?({_ALIASED}(?:\s*,\s*{_ALIASED})*)", re.IGNORECASE
)


def table_names(sql: str) -> list[str]:
    """The names after FROM and JOIN, each once, in order: tables, views and streams."""
    found: dict[str, None] = {}
    for match in _TABLES.finditer(_COMMENT_OR_TEXT.sub(" ", sql)):
        for item in match[1].split(","):
            found[item.split()[0].strip("`")] = None
    return list(found)


def streams_in(sql: str, streams: Iterable[str]) -> tuple[str, ...]:
    """The streams that a SQL text reads; SQL ignores the case of names."""
    by_name = {stream.lower(): stream for stream in streams}
    read = (by_name.get(table.lower()) for table in table_names(sql))
    return tuple(dict.fromkeys(stream for stream in read if stream is not None))
