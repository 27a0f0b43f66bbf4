"""Runs a bench: what its function may ask for, and the collection of what it reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from penstock.bench.parts import Parts
from penstock.bench.registry import Bench
from penstock.bench.report import BenchReport, judge
from penstock.vocabulary.errors import InvalidInputError

T = TypeVar("T")

DEFAULT_REPEATS = 5

Progress = Callable[[str | None, float, float | None], None]
"""Takes a text, an advance and a total, each of which may be left as it is."""


class BenchRun:
    """Handed to a bench function.

    Attributes:
        quick: Measure fewer points; rows may then be left out.
        seed: First seed of the repeats.
        repeats: How often to repeat a measurement that depends on a seed.
        plots: Existing folder for PNG files, or `None` when none are wanted.
        seconds: How long a measurement lasts, or `None` for what is usual.
        parts: Where finished parts are kept, or `None` when they are not.
    """

    def __init__(
        self,
        quick: bool = False,
        seed: int = 0,
        repeats: int | None = None,
        plots: Path | None = None,
        on_progress: Progress | None = None,
        seconds: float | None = None,
        parts: Parts | None = None,
    ) -> None:
        self.quick, self.seed, self.plots, self.seconds = quick, seed, plots, seconds
        self._asked, self.parts = repeats, parts
        self.repeats = self.times(DEFAULT_REPEATS)
        if self.repeats < 1:
            raise InvalidInputError("repeats must be at least 1", self.repeats, f"{DEFAULT_REPEATS} is usual")
        self.on_progress = on_progress
        self.rows: dict[str, float] = {}
        self.notes: list[str] = []

    def times(self, usual: int) -> int:
        """Repeats of a measurement with a usual number of its own: what was asked for, else that."""
        return self._asked if self._asked is not None else 1 if self.quick else usual

    def lasts(self, usual: float) -> float:
        """Seconds of a measurement with a usual length of its own: what was asked for, else that."""
        return usual if self.seconds is None else self.seconds

    def row(self, name: str, value: float) -> None:
        """Reports a measured number under the name that it has in expected.csv."""
        number = float(value)
        if not math.isfinite(number):
            raise InvalidInputError(f"row {name} must be a finite number", number, "report the sums instead")
        if name in self.rows:
            raise InvalidInputError("a row is reported once", repr(name), "average first, see run.repeat")
        self.rows[name] = number

    def note(self, text: str) -> None:
        """A finding, printed under the table."""
        self.notes.append(text)

    def part(self, name: str, measure: Callable[[], T]) -> T:
        """A part of a long bench, which is not measured again if an earlier run has finished it.

        Args:
            name: Of the part, once in a bench.
            measure: Measures it; gives numbers, texts, lists and dicts of them.
        """
        return measure() if self.parts is None else self.parts.part(name, measure)

    def progress(self, text: str | None = None, advance: float = 0.0, total: float | None = None) -> None:
        """What is going on and how far: `run.progress(total=6)`, then `run.progress("ctrl", advance=1)`."""
        if self.on_progress is not None:
            self.on_progress(text, advance, total)

    @overload
    def repeat(self, measure: Callable[[int], float]) -> float: ...

    @overload
    def repeat(self, measure: Callable[[int], Mapping[str, float]]) -> dict[str, float]: ...

    def repeat(self, measure: Callable[[int], Any]) -> Any:
        """The mean of `measure(seed)` over `repeats` seeds: of numbers, or key by key of dicts of numbers."""
        results = [measure(self.seed + i) for i in range(self.repeats)]
        first = results[0]
        if not isinstance(first, Mapping):
            return sum(results) / len(results)
        for table in results:
            if table.keys() != first.keys():
                raise InvalidInputError(
                    "every repeat measures the same names", sorted(table), f"the first gave {sorted(first)}"
                )
        return {name: sum(table[name] for table in results) / len(results) for name in first}


def run_bench(bench: Bench, run: BenchRun) -> BenchReport:
    """Runs a bench and holds what it measured against what is expected."""
    bench.function(run)
    return judge(bench.id, bench.title, bench.expected, run.rows, run.notes, run.quick, run.seed)
