"""Reads a run directory, whole or cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.record.layout import (
    CHANGES,
    CONFIG,
    DECISIONS,
    FORMAT,
    OBSERVATION_SCHEMA,
    OBSERVATIONS,
    READABLE_SCHEMAS,
    decode_decision,
    from_row,
)
from penstock.record.parts import all_parts
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Decision, Observation

_FILES = (CONFIG, OBSERVATIONS, DECISIONS)
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Closes an Arrow stream; without it, a file that was cut between two batches would look whole."""


@dataclass(frozen=True)
class RecordedRun:
    """A run as read from its directory.

    Attributes:
        config: The configuration that `RunDirectory.create` got.
        penstock_version: The version of Penstock that wrote the run.
        observations: Observations in the order of the run.
        decisions: Decisions as the manager proposed them, in the same order.
        changes: Managers that were exchanged: class, first observation, manager, settings.
        shedding: Decisions of class shedders: shedder, class, query, reason and rows.
        truncated: Whether the end is missing, because the run was killed or goes on. There may then be more
            decisions than observations, because observations are written in batches.
        dropped: Parts that were removed because the record had a limit: the beginning is missing.
        managers: Each class's manager at the beginning of what is left; empty if nothing was removed.
    """

    config: dict[str, Any]
    penstock_version: str
    observations: list[Observation]
    decisions: list[Decision]
    truncated: bool
    changes: list[dict[str, Any]] = field(default_factory=list)
    shedding: list[dict[str, Any]] = field(default_factory=list)
    dropped: int = 0
    managers: dict[str, Any] = field(default_factory=dict)


def read_run(path: Path | str) -> RecordedRun:
    """Reads a run directory, whole or cut off."""
    path = Path(path)
    config = _read_config(path)
    version = str(config.pop("penstock_version", "unknown"))
    observed, decided = all_parts(path / OBSERVATIONS), all_parts(path / DECISIONS)
    first = max(min(observed), min(decided))
    observations, observations_whole = _read_observations([f for n, f in observed.items() if n >= first])
    found = _Decisions()
    for part in (file for number, file in decided.items() if number >= first):
        found.read(part)
    lines = found.decisions
    for observation, (observation_id, _) in zip(observations, lines, strict=False):
        if observation.id != observation_id:
            raise InvalidInputError(
                f"observations and decisions of {path} come in the same order",
                f"observation {observation.id} beside a decision on {observation_id}",
                "the files are not of one run",
            )
    whole = observations_whole and found.whole and len(observations) == len(lines)
    changes = path / CHANGES
    exchanged = [json.loads(line) for line in changes.read_text().splitlines()] if changes.exists() else []
    return RecordedRun(
        config,
        version,
        observations,
        [decision for _, decision in lines],
        not whole,
        exchanged,
        found.shedding,
        first - 1,
        found.managers if first > 1 else {},
    )


def _read_config(path: Path) -> dict[str, Any]:
    hint = "give the directory that holds config.json, observations.arrows and decisions.jsonl"
    # a run that was killed between two parts has only complete parts
    there = {name: any(f.is_file() for f in all_parts(path / name).values()) for name in _FILES}
    missing = [name for name in _FILES if not there[name]]
    if missing:
        raise InvalidInputError("a run directory is complete", f"{path} without {', '.join(missing)}", hint)
    try:
        config = json.loads((path / CONFIG).read_bytes())
    except ValueError as error:
        raise InvalidInputError(f"{path / CONFIG} is JSON", error, hint) from error
    version = config.pop("format", None) if isinstance(config, dict) else None
    if not isinstance(version, int) or version < 1:
        raise InvalidInputError(f"{path / CONFIG} states the format of its run", repr(version), hint)
    if version > FORMAT:
        raise InvalidInputError(
            f"this Penstock reads runs up to format {FORMAT}", version, "read it with a newer Penstock"
        )
    result: dict[str, Any] = config
    return result


def _read_observations(parts: Sequence[Path]) -> tuple[list[Observation], bool]:
    """The observations of all whole batches, and whether the end is there too."""
    found = [_read_part(part) for part in parts if part.is_file()]
    rows = [row for part, _ in found for row in part]
    return [from_row(row) for row in rows], bool(found) and all(whole for _, whole in found)


def _read_part(path: Path) -> tuple[list[dict[str, Any]], bool]:
    content = path.read_bytes()
    rows: list[dict[str, Any]] = []
    try:
        batches = pa.ipc.open_stream(content)
        schema = batches.schema
    except (pa.ArrowInvalid, OSError) as error:
        if len(content) < OBSERVATION_SCHEMA.serialize().size:
            return [], False  # the run was killed before the first batch
        raise InvalidInputError(f"{path} is an Arrow stream", error, "the file is damaged") from error
    if not any(schema.equals(known) for known in READABLE_SCHEMAS):
        raise InvalidInputError(
            f"{path} has the columns of format {FORMAT}", schema.names, "it was written by something else"
        )
    whole = content.endswith(_END_OF_STREAM)
    try:
        for batch in batches:
            rows += batch.to_pylist()
    except (pa.ArrowInvalid, OSError):
        whole = False  # the last batch is cut off
    return rows, whole


@dataclass
class _Decisions:
    """Contents of all whole lines of decisions: observation ids and proposed decisions of managers, decisions
    of shedders, and managers' states at the beginning; and whether the last line is whole.
    """

    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    shedding: list[dict[str, Any]] = field(default_factory=list)
    managers: dict[str, Any] = field(default_factory=dict)
    whole: bool = True

    def read(self, path: Path) -> None:
        """Adds a part of the file."""
        if not path.is_file():
            self.whole = False
            return
        lines = path.read_bytes().split(b"\n")
        self.whole = not lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidInputError(
                    f"every line of {path} is a decision", f"line {number}: {error!r}", "the file is damaged"
                ) from error

    def _take(self, line: dict[str, Any]) -> None:
        if "shedder" in line:
            self.shedding.append(line)
        elif "part" in line:
            self.managers = self.managers or dict(line["managers"])
        else:
            self.decisions.append((int(line["observation_id"]), decode_decision(line["proposed"])))
