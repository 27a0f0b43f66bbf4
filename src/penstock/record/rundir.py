"""The run directory: the record of a run, which suffices to explain and to replay the run.

    config.json          the caller's configuration, the format's version and Penstock's
    observations.arrows  Arrow IPC stream, one row an observation, appended in batches
    decisions.jsonl      one JSON line a decision of a load manager or a class's shedder, written at once
    changes.jsonl        managers that were exchanged during the run, if any were
    report.json          the closing report, if there is one

If the record has a limit, the oldest observations, decisions and lines of SIC are removed; see
`record/parts.py`. Each part of the decisions then begins with the managers' states, so that a replay can
begin there.

A run that was killed loses at most the observations of its last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock.control.decide.cycle import Step
from penstock.record.layout import (
    CHANGES,
    CONFIG,
    DECISIONS,
    FORMAT,
    OBSERVATION_SCHEMA,
    OBSERVATIONS,
    REPORT,
    SIC,
    dump_json,
    encode_decision,
    to_row,
)
from penstock.record.parts import Parts, dropped
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.version import __version__

BATCH_ROWS = 64


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
        self._rows.append(to_row(step.observation))
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


def _write_new(path: Path, text: str) -> None:
    with path.open("x", encoding="ascii", newline="\n") as file:
        file.write(text + "\n")
