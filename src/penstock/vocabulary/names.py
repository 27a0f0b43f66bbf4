"""Which names are allowed, by the place where a name is used: in SQL, on command lines, as names of files."""

from __future__ import annotations

import re

_SQL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_sql_name(name: str) -> bool:
    """Whether Spark SQL takes a name for a table or a view without quotes."""
    return _SQL.fullmatch(name) is not None


def is_word(name: str) -> bool:
    """Whether a name can be an option of a command, a key of a file and a part of a path."""
    return _WORD.fullmatch(name) is not None


def is_file_name(name: str, most: int) -> bool:
    """Whether a name has at most `most` letters and can be the name of a file that is not hidden."""
    return len(name) <= most and _FILE.fullmatch(name) is not None
