"""Trims logs: removes rows that all registered readers have passed."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.streams.protocol import StreamLog
from penstock.streams.registry import ReaderRegistry

EVERY_S = 10.0
"""Time between two trims of a stream."""


def trim(logs: Iterable[StreamLog]) -> None:
    """Trims streams. A stream without registered readers keeps all rows.

    A trim takes time: it forces two files of each partition to disk.
    """
    for log in logs:
        ReaderRegistry(log).trim()
