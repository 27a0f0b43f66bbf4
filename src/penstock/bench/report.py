"""The papers' figures beside ours: expected.csv, what is within its tolerance, the table and the JSON.

expected.csv has the columns `id,name,paper,kind,tolerance,goal,reason`. `id` is the bench's name in its
folder, `paper` the published figure or nothing. `tolerance` and `goal` are in the unit of the kind:

    ratio     within a factor, x2 unless told
    loss      within percentage points, 3 unless told
    delay     within percent of the paper's figure, 30 unless told
    at_least, at_most   a bound of our own; the goal where `tolerance` is empty
    info      printed, always ok

A goal is a tighter tolerance that is shown and never fails. A figure of a paper that is held against anything
wider than the default needs a reason, which is printed.
"""

from __future__ import annotations

import csv
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.version import __version__

EXPECTED_FILE = "expected.csv"
COLUMNS = ("id", "name", "paper", "kind", "tolerance", "goal", "reason")
DEFAULT_TOLERANCE = {"ratio": 2.0, "loss": 3.0, "delay": 30.0}
BOUNDS = ("at_least", "at_most")
KINDS = (*DEFAULT_TOLERANCE, *BOUNDS, "info")


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """One line of expected.csv, see the module."""

    name: str
    kind: str
    paper: float | None = None
    tolerance: float | None = None
    goal: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownNameError(f"row {self.name}: kind", self.kind, KINDS)
        if self.kind in DEFAULT_TOLERANCE and (self.paper is None or self.paper < 0):
            raise InvalidInputError(
                f"row {self.name}: a {self.kind} is held against a paper's figure",
                self.paper,
                "use at_least, at_most or info",
            )
        if self.kind in ("ratio", "delay") and self.paper == 0:
            raise InvalidInputError(
                f"row {self.name}: a {self.kind} is relative to a figure above 0", 0, "use at_most"
            )
        if self.kind in BOUNDS and self.limit is None:
            raise InvalidInputError(
                f"row {self.name}: {self.kind} needs a bound", "none", "put it under tolerance, or under goal"
            )
        if self.is_wider and not self.reason:
            raise InvalidInputError(
                f"row {self.name}: a check wider than the default needs a reason",
                f"{self.kind} {'' if self.tolerance is None else format(self.tolerance, 'g')}".strip(),
                "write it into the column reason",
            )

    @property
    def limit(self) -> float | None:
        """The tolerance in force, or the bound."""
        if self.tolerance is not None:
            return self.tolerance
        return self.goal if self.kind in BOUNDS else DEFAULT_TOLERANCE.get(self.kind)

    @property
    def is_wider(self) -> bool:
        """Whether a paper's figure is held against something wider than the default."""
        if self.kind in DEFAULT_TOLERANCE:
            return self.tolerance is not None and self.tolerance > DEFAULT_TOLERANCE[self.kind]
        return self.paper is not None

    def holds(self, ours: float, limit: float | None = None) -> bool:
        """Whether a measured number is within the tolerance (or within a tighter one)."""
        limit = self.limit if limit is None else limit
        if limit is None:
            return True
        if self.kind == "at_least":
            return ours >= limit
        if self.kind == "at_most":
            return ours <= limit
        paper = self.paper or 0.0
        if self.kind == "ratio":
            return paper / limit <= ours <= paper * limit
        allowed = limit if self.kind == "loss" else limit / 100 * paper
        return abs(ours - paper) <= allowed * (1 + 1e-12)

    def difference(self, ours: float) -> str:
        """How far a measured number is from the paper's."""
        if self.paper is None:
            return ""
        if self.kind == "loss":
            return f"{ours - self.paper:+.2f} points"
        if self.paper == 0:
            return f"{ours:+.4g}"
        if self.kind == "delay":
            return f"{100 * (ours / self.paper - 1):+.0f} %"
        return f"x{ours / self.paper:.3g}"

    def tolerance_text(self) -> str:
        """The tolerance in words, with the goal."""
        text = self._limit_text(self.limit)
        if self.goal is not None and self.limit is not None and self.goal != self.limit:
            goal = f"{self.goal:g}" if self.kind in BOUNDS else self._limit_text(self.goal)
            text += f", goal {goal}"
        return text

    def _limit_text(self, limit: float | None) -> str:
        formats = {
            "ratio": "x{:g}",
            "loss": "±{:g} points",
            "delay": "±{:g} %",
            "at_least": "at least {:g}",
            "at_most": "at most {:g}",
        }
        return "none" if limit is None else formats[self.kind].format(limit)


class PaperFigures(NamedTuple):
    """How the figures of a paper are held.

    Attributes:
        within: Ours must be near the paper's: within a factor, points or percent of it.
        bounded: Ours must lie on one side of a bound of our own, which may be far from the paper's.
        printed: Ours stands beside the paper's, and can be anything.
    """

    within: int = 0
    bounded: int = 0
    printed: int = 0

    @classmethod
    def of(cls, rows: Iterable[ExpectedRow]) -> PaperFigures:
        kinds = [row.kind for row in rows if row.paper is not None]
        printed, bounded = kinds.count("info"), sum(kind in BOUNDS for kind in kinds)
        return cls(len(kinds) - bounded - printed, bounded, printed)

    @property
    def total(self) -> int:
        return sum(self)


def read_expected(path: Path, folder: str, benches: Sequence[str]) -> dict[str, tuple[ExpectedRow, ...]]:
    """Reads an expected.csv: the rows of each bench of the folder.

    Args:
        path: The file.
        folder: Name of the folder; `folder/name` is accepted under id as well.
        benches: Names of the benches in the folder.
    """
    if not path.is_file():
        raise InvalidInputError(
            f"a bench folder has an {EXPECTED_FILE}", path, f"columns: {','.join(COLUMNS)}"
        )
    rows: dict[str, dict[str, ExpectedRow]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise InvalidInputError(
                f"{path} has the columns {','.join(COLUMNS)}",
                ",".join(reader.fieldnames or ()),
                "in this order",
            )
        for line in reader:
            if None in line or None in line.values():
                raise InvalidInputError(
                    f"{path}:{reader.line_num} has {len(COLUMNS)} cells", dict(line), "quote commas"
                )
            name, row = _parse(line, f"{path}:{reader.line_num}")
            short = name.removeprefix(f"{folder}/")
            if short not in benches:
                raise UnknownNameError(f"{path}:{reader.line_num}: id", name, benches)
            if row.name in rows.setdefault(short, {}):
                raise InvalidInputError(
                    f"{path}:{reader.line_num}: a row of {short} is listed once", repr(row.name), "remove one"
                )
            rows[short][row.name] = row
    return {name: tuple(named.values()) for name, named in rows.items()}


def _parse(line: Mapping[str, str], where: str) -> tuple[str, ExpectedRow]:
    cells = {name: line[name].strip() for name in COLUMNS}
    numbers: dict[str, float | None] = {}
    for column in ("paper", "tolerance", "goal"):
        try:
            numbers[column] = float(cells[column]) if cells[column] else None
        except ValueError:
            numbers[column] = math.nan
        if not math.isfinite(numbers[column] or 0.0):
            raise InvalidInputError(
                f"{where}: {column} is a number or empty", repr(cells[column]), "units belong into the name"
            )
    return cells["id"], ExpectedRow(cells["name"], cells["kind"], reason=cells["reason"], **numbers)


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A measured number beside what was expected; `None` where expected.csv does not list it."""

    name: str
    ours: float
    expected: ExpectedRow | None

    @property
    def ok(self) -> bool:
        return self.expected is not None and self.expected.holds(self.ours)

    @property
    def verdict(self) -> str:
        if self.expected is None:
            return "not listed"
        if not self.ok:
            return "NO"
        goal = self.expected.goal
        return (
            "yes, short of goal" if goal is not None and not self.expected.holds(self.ours, goal) else "yes"
        )


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What a bench measured. `missing` names the listed rows that were not measured."""

    id: str
    title: str
    rows: tuple[JudgedRow, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    quick: bool
    seed: int

    @property
    def unlisted(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows if row.expected is None)

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows) and (self.quick or not self.missing)

    def require_complete(self) -> None:
        """Rejects rows that are measured but not listed, and, unless quick, listed but not measured."""
        if self.unlisted:
            raise InvalidInputError(
                f"{self.id} measures only what {EXPECTED_FILE} lists",
                ", ".join(self.unlisted),
                "add a line, kind info if there is nothing to hold it against",
            )
        if self.missing and not self.quick:
            raise InvalidInputError(
                f"{self.id} measures every row that {EXPECTED_FILE} lists",
                f"no {', '.join(self.missing)}",
                "report it with run.row, or remove the line",
            )

    def to_json(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "id": self.id,
            "ok": self.ok,
            "quick": self.quick,
            "rows": [
                {
                    "name": row.name,
                    "paper": row.expected.paper if row.expected else None,
                    "ours": row.ours,
                    "tolerance": row.expected.tolerance_text() if row.expected else "not listed",
                    "ok": row.ok,
                }
                for row in self.rows
            ],
            "environment": environment(),
            "seed": self.seed,
        }

    def print(self, console: Console) -> None:
        """The table, then reasons of wider tolerances, notes, and what quick left out."""
        mark = " [bold yellow]QUICK[/] (fewer points or repeats)" if self.quick else ""
        console.print(
            f"[bold]{escape(self.id)}[/]{mark}: {escape(self.title)}", highlight=False, soft_wrap=True
        )
        table = Table()
        for column in ("name", "paper", "ours", "difference", "tolerance", "ok"):
            table.add_column(column, justify="right" if column in ("paper", "ours", "difference") else "left")
        wider = [row for row in self.rows if row.expected and row.expected.is_wider]
        for row in self.rows:
            known = row.expected
            table.add_row(
                escape(row.name),
                "" if known is None or known.paper is None else _figure(known.paper),
                _figure(row.ours),
                known.difference(row.ours) if known else "",
                ((known.tolerance_text() if known else "") + (" *" if row in wider else "")),
                row.verdict,
                style=None if row.ok else "red",
            )
        console.print(table)
        lines = [f"* {row.name}: {row.expected.reason}" for row in wider if row.expected]
        lines += [f"- {note}" for note in self.notes]
        if self.missing:
            lines.append(f"not measured{' (quick)' if self.quick else ''}: {', '.join(self.missing)}")
        for line in lines:
            console.print(escape(line), highlight=False, soft_wrap=True)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def judge(
    bench_id: str,
    title: str,
    expected: Sequence[ExpectedRow],
    measured: Mapping[str, float],
    notes: Sequence[str],
    quick: bool,
    seed: int,
) -> BenchReport:
    """Holds measured numbers against the expected ones, in the order of expected.csv, unlisted ones last."""
    listed = {row.name: row for row in expected}
    rows = [JudgedRow(name, measured[name], row) for name, row in listed.items() if name in measured]
    rows += [JudgedRow(name, ours, None) for name, ours in measured.items() if name not in listed]
    missing = tuple(name for name in listed if name not in measured)
    return BenchReport(bench_id, title, tuple(rows), missing, tuple(notes), quick, seed)


def environment() -> dict[str, object]:
    """What the numbers were measured on."""
    import numpy

    return {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "penstock": __version__,
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
    }
