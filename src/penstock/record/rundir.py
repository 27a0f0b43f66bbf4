"""The run directory: the record of a run, which suffices to explain and to replay the run.

    config.json          the caller's configuration, the format's version and Penstock's
    observations.arrows  Arrow IPC stream, one row an observation, appended in batches
    decisions.jsonl      one JSON line a decision of a load manager or a class's shedder, written at once
    changes.jsonl        managers that were exchanged during the run, if any were
    report.json          the closing report, if there is one

If the record has a limit, the oldest observations, decisions and lines of SIC are removed; see
`record/parts.py`. Each part of the decisions then begins with the managers' states, so that a replay can
begin there.

JSON has no infinities and no NaN: they are written as the strings "Infinity", "-Infinity" and "NaN", which
`float()` reads back. A run that was killed loses at most the observations of its last batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.control.decide.cycle import Step
from penstock.record.parts import Parts, all_parts, dropped
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import (
    Admission,
    BatchTiming,
    Decision,
    DelayStats,
    Expected,
    Observation,
    WaitingRows,
)
from penstock.vocabulary.version import __version__

FORMAT = 5
BATCH_ROWS = 64

CONFIG, OBSERVATIONS, DECISIONS, CHANGES, SIC, REPORT = (
    "config.json",
    "observations.arrows",
    "decisions.jsonl",
    "changes.jsonl",
    "sic.jsonl",
    "report.json",
)

_FILES = (CONFIG, OBSERVATIONS, DECISIONS)

_FLOATS = pa.list_(pa.field("item", pa.float64(), nullable=False))
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Closes an Arrow stream; without it, a file that was cut between two batches would look whole."""


def _required(*names: str, kind: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name in names]


OBSERVATION_SCHEMA = pa.schema(
    [
        *_required("id", kind=pa.int64()),
        *_required("cls", kind=pa.string()),
        *_required("now_s", "period_s", "delay_target_s", "keep_fraction", kind=pa.float64()),
        *_required("offered_rows", "admitted_rows", "shed_rows", "departed_rows", kind=pa.int64()),
        *_required("waiting_rows", kind=pa.int64()),
        *_required("offered_load", "queued_load_s", "network_load_s", kind=pa.float64()),
        pa.field("cost_per_row_s", pa.float64()),
        *_required("work_s", "busy_s", kind=pa.float64()),
        *_required(
            "delay",
            kind=pa.struct(
                [
                    *_required("count", kind=pa.int64()),
                    *[pa.field(f.name, pa.float64()) for f in fields(DelayStats) if f.name != "count"],
                ]
            ),
        ),
        *_required("output_delay_s", kind=_FLOATS),
        *_required("waiting", kind=pa.struct(_required("arrival_s", "rows", kind=_FLOATS))),
        pa.field("batch", pa.struct(_required(*(f.name for f in fields(BatchTiming)), kind=pa.float64()))),
        *_required("capacity_scale", kind=pa.float64()),
    ]
)
_READABLE_SCHEMAS = [pa.schema(list(OBSERVATION_SCHEMA)[: len(OBSERVATION_SCHEMA) - n]) for n in range(3)]
"""Schemas of formats 3 (and later), 2 and 1; each format has a column more than the one before it."""


def check_new(path: Path) -> None:
    """Refuses a directory that is not empty: runs are never overwritten."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInputError(
            "a run is recorded in a new or empty directory",
            path,
            "runs are never overwritten: name another directory",
        )


class RunDirectory:
    """Writes a run directory; a `Recorder` for the cycle. Close it, or use it in a `with`."""

    def __init__(self, path: Path, batch_rows: int, limit_bytes: int | None) -> None:
        self.path, self._batch_rows = path, batch_rows
        self._rows: list[dict[str, object]] = []
        self._closed = False
        self._parts = Parts([path / DECISIONS, path / OBSERVATIONS], limit_bytes)
        self._sic = Parts([path / SIC], limit_bytes)
        self.managers: Callable[[], Mapping[str, object]] = dict
        """Gives each class's manager with its state; see `replay.manager_now`."""
        self._open()

    def _open(self) -> None:
        self._decisions = (self.path / DECISIONS).open("x", encoding="ascii", newline="\n")
        self._observations = (self.path / OBSERVATIONS).open("xb")
        self._batches = pa.ipc.new_stream(
            self._observations, OBSERVATION_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")
        )

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Mapping[str, object],
        batch_rows: int = BATCH_ROWS,
        limit_bytes: int | None = None,
    ) -> RunDirectory:
        """Starts a run directory.

        Args:
            path: A new or empty directory; its parents are made.
            config: The run's configuration as JSON values; `replay.describe_manager` gives what replay needs.
            batch_rows: How many observations are written at a time.
            limit_bytes: How many bytes of observations, decisions and lines of SIC are kept each; `None` for
                all.
        """
        path = Path(path)
        check_new(path)
        reserved = {"format", "penstock_version"} & set(config)
        if reserved:
            raise InvalidInputError(
                "a run's configuration leaves format and penstock_version to Penstock",
                ", ".join(sorted(reserved)),
                "rename the key",
            )
        text = dump_json({"format": FORMAT, "penstock_version": __version__, **config}, indent=2)
        path.mkdir(parents=True, exist_ok=True)
        _write_new(path / CONFIG, text)
        return cls(path, batch_rows, limit_bytes)

    def record(self, step: Step) -> None:
        """Writes a decision at once, its observation with the next batch."""
        if self._closed:
            raise InvalidInputError(
                "a run directory records until it is closed", self.path, "record inside the `with`"
            )
        self._decisions.write(dump_json(_decision_line(step)) + "\n")
        self._decisions.flush()
        self._rows.append(_to_row(step.observation))
        if len(self._rows) >= self._batch_rows:
            self._write_batch()
        if any(self._parts.is_full(file.tell()) for file in (self._decisions, self._observations)):
            self._next_part()

    def _next_part(self) -> None:
        """Begins a new part of both files at once, so that observations and decisions stay side by side."""
        self._end_files()
        self._parts.next()
        self._open()
        self._decisions.write(dump_json({"part": self._parts.number, "managers": self.managers()}) + "\n")
        self._decisions.flush()

    def record_change(self, cls: str, observation_id: int, manager: Mapping[str, object]) -> None:
        """Records that a class has another manager from an observation on; see `replay.describe_manager`."""
        line = {"cls": cls, "observation_id": observation_id, **manager}
        with (self.path / CHANGES).open("a", encoding="ascii", newline="\n") as file:
            file.write(dump_json(line) + "\n")

    def record_sic(self, line: Mapping[str, object]) -> None:
        """Records the SIC of a query's micro-batch."""
        self._sic.add(dump_json(line) + "\n")

    def record_shedding(self, line: Mapping[str, object]) -> None:
        """Writes the decision of a class's shedder at once; a manager's line has no key `shedder`."""
        self._decisions.write(dump_json(line) + "\n")
        self._decisions.flush()

    def write_report(self, report: Mapping[str, object]) -> None:
        """Writes the closing report, once; also after `close`. The report says which parts were removed."""
        if (self.path / REPORT).exists():
            raise InvalidInputError("a run has one report", self.path / REPORT, "write it at the end")
        gone = dropped(self.path)
        whole = {**report, "dropped": gone} if gone else report
        _write_new(self.path / REPORT, dump_json(whole, indent=2))

    def close(self) -> None:
        """Writes buffered observations and ends the files; a second call is a no-op."""
        if self._closed:
            return
        self._closed = True
        self._end_files()

    def _end_files(self) -> None:
        with self._decisions, self._observations:
            self._write_batch()
            self._batches.close()

    def abandon(self) -> None:
        """Closes the files as they are, without buffered observations: `read_run` finds the run cut off."""
        self._closed = True
        for file in (self._decisions, self._observations):
            with suppress(OSError):
                file.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_batch(self) -> None:
        if self._rows:
            self._batches.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=OBSERVATION_SCHEMA))
            self._observations.flush()
            self._rows = []


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


def dump_json(value: object, indent: int | None = None) -> str:
    """JSON text in ASCII; infinities and NaN as strings."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def encode_decision(decision: Decision) -> dict[str, Any]:
    """A decision as JSON values. Equal decisions have equal encodings, even if a field is NaN."""
    encoded: dict[str, Any] = _plain(asdict(decision))
    return encoded


def decode_decision(encoded: Mapping[str, Any]) -> Decision:
    """The inverse of `encode_decision`."""
    expected, grant = encoded["expected"], encoded["grant"]
    return Decision(
        observation_id=int(encoded["observation_id"]),
        keep_fraction=float(encoded["keep_fraction"]),
        reason=str(encoded["reason"]),
        expected=Expected(_optional(expected["delay_s"]), _optional(expected["admitted_rows"])),
        shed_load_s=float(encoded["shed_load_s"]),
        grant=None if grant is None else _decode_grant(grant),
        headroom=_optional(encoded["headroom"]),
    )


def _decode_grant(encoded: Mapping[str, Any]) -> Admission:
    return Admission(
        cut_s=float(encoded["cut_s"]),
        shed_before_s=float(encoded["shed_before_s"]),
        keep_fraction=float(encoded["keep_fraction"]),
        limit_rows=_optional(encoded["limit_rows"]),
    )


def _decision_line(step: Step) -> dict[str, object]:
    line: dict[str, object] = {
        "observation_id": step.observation.id,
        "cls": step.observation.cls,
        "now_s": step.observation.now_s,
        "proposed": encode_decision(step.proposed),
    }
    if step.applied != step.proposed:
        line["applied"] = encode_decision(step.applied)
    return {**line, "notes": step.notes, "dry_run": step.dry_run}


def _to_row(observation: Observation) -> dict[str, object]:
    row = {f.name: getattr(observation, f.name) for f in fields(Observation)}
    row["delay"] = asdict(observation.delay)
    row["output_delay_s"] = observation.output_delay_s.tolist()
    waiting = observation.waiting
    row["waiting"] = {"arrival_s": waiting.arrival_s.tolist(), "rows": waiting.rows.tolist()}
    row["batch"] = None if observation.batch is None else asdict(observation.batch)
    return row


def _from_row(row: dict[str, Any]) -> Observation:
    row["delay"] = DelayStats(**row["delay"])
    row["output_delay_s"] = np.array(row["output_delay_s"], np.float64)
    row["waiting"] = WaitingRows(**{k: np.array(v, np.float64) for k, v in row["waiting"].items()})
    if row.get("batch") is not None:
        row["batch"] = BatchTiming(**row["batch"])
    return Observation(**row)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float):
        return value
    raise InvalidInputError(
        "JSON in a run directory is made of mappings with string keys, lists, strings and numbers",
        f"{value!r} ({type(value).__name__})",
        "convert it first, for example a path with str()",
    )


def _write_new(path: Path, text: str) -> None:
    with path.open("x", encoding="ascii", newline="\n") as file:
        file.write(text + "\n")


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
    return [_from_row(row) for row in rows], bool(found) and all(whole for _, whole in found)


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
    if not any(schema.equals(known) for known in _READABLE_SCHEMAS):
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
