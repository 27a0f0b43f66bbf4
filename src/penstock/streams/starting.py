"""Where a new reader begins: at an end of the log, at positions, at a time, or where another one stands."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.streams.descriptor import partition_label
from penstock.streams.protocol import StreamLog
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

Starting = str | Mapping[str, Any]
"""`"earliest"`, `"latest"`, `{"positions": {0: 1200}}`, `{"time": "2026-11-18T12:00:00Z"}` or
`{"reader": "fraud-7f3a"}`."""

_WORDS = ("earliest", "latest")
_KEYS = ("positions", "time", "reader")
_END_OF_TIME_S = datetime.max.replace(tzinfo=UTC).timestamp()
"""A number beyond is no time in seconds: it may be in milliseconds."""


def check_starting(starting: Starting) -> Starting:
    """Refuses what no stream can start at; returns it as it can travel in JSON."""
    if isinstance(starting, str):
        if starting not in _WORDS:
            raise UnknownNameError("starting", starting, _WORDS)
        return starting
    if not isinstance(starting, Mapping) or len(starting) != 1 or next(iter(starting)) not in _KEYS:
        raise InvalidInputError(
            f"starting is {' or '.join(_WORDS)}, or a mapping with one of {', '.join(_KEYS)}",
            repr(starting)[:80],
            'for example {"time": "2026-11-18T12:00:00Z"}',
        )
    if "positions" in starting:
        return {"positions": _positions(starting["positions"])}
    if "time" in starting:
        return {"time": _seconds(starting["time"])}
    return {"reader": str(starting["reader"])}


def first_positions(log: StreamLog, starting: Starting) -> dict[int, int]:
    """By partition, the first position that a new reader gets.

    A partition that `positions` or the other reader do not name is read from its beginning.

    Raises:
        InvalidInputError: The stream has no such positions, or no such reader.
    """
    starting, partitions = check_starting(starting), range(log.partitions)
    earliest = {p: log.start(p) for p in partitions}
    if isinstance(starting, str):
        return earliest if starting == "earliest" else {p: log.end(p) for p in partitions}
    if "time" in starting:
        return {p: log.position_at(p, round(starting["time"] * 1e6)) for p in partitions}
    if "reader" in starting:
        readers = {reader.name: reader for reader in ReaderRegistry(log).readers()}
        if starting["reader"] not in readers:
            raise UnknownNameError(f"a reader of stream {log.name}", starting["reader"], readers)
        stood = readers[starting["reader"]].positions
        return {p: max(first, stood.get(p, first)) for p, first in earliest.items()}
    wanted = {int(p): position for p, position in starting["positions"].items()}
    for p, position in wanted.items():
        if not log.start(p) <= position <= log.end(p):
            there = f"{log.start(p)} to {log.end(p)}"
            raise InvalidInputError(
                f"{partition_label(log, p)} of stream {log.name} has positions {there}",
                position,
                "start at one of them, or at earliest or latest",
            )
    return {**earliest, **wanted}


def _positions(given: object) -> dict[str, int]:
    found = given if isinstance(given, Mapping) else {}
    try:  # a partition may be a text: keys of JSON are
        numbers = {str(_whole(int(p) if isinstance(p, str) else p)): _whole(at) for p, at in found.items()}
    except (TypeError, ValueError):
        numbers = {}
    if not numbers:
        raise InvalidInputError(
            "positions are whole numbers by partition", repr(given)[:80], "for example {0: 1200, 1: 980}"
        )
    return numbers


def _whole(given: Any) -> int:
    """A whole number of any integer type, no truth value and no fraction."""
    if isinstance(given, bool):
        raise TypeError("a truth value is no number")
    return operator.index(given)


def _seconds(given: object) -> float:
    """Seconds since the epoch, of a number or a text; a text without a time zone is in UTC."""
    try:
        if isinstance(given, int | float):
            if isinstance(given, bool) or not abs(given) < _END_OF_TIME_S:  # NaN is not below it either
                raise ValueError
            return float(given)
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        raise InvalidInputError(
            "a time is in ISO 8601 or in seconds since the epoch",
            repr(given)[:80],
            "for example 2026-11-18T12:00:00Z",
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
