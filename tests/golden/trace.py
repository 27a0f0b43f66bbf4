"""A golden trace: the questions that were granted, their answers and the offsets, one JSON line each.

Questions that are answered with "nothing yet" are left out: when a source asks again is not a decision. An
offset that stood in an earlier line of its reader is written as "=".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden.scenarios import Scenario

from penstock.sim.microbatch import Event, Lab, Recording, check_books

FOLDER = Path(__file__).parent / "traces"
SAME = "="
CLOSE = 1e-9
"""Numbers may differ by this part: sums of floats depend on the machine's vector instructions."""

Line = Mapping[str, Any]


def record(scenario: Scenario) -> list[Line]:
    """Runs a scenario, and checks its books at the end."""
    recording = Recording()
    with TemporaryDirectory() as folder:
        lab = Lab(Path(folder))

        def make(*args: Any, **others: Any) -> Any:
            cluster = lab(*args, **others)
            cluster.observers.append(recording)
            return cluster

        with lab.open:
            check_books(scenario(lab, make))
    return list(_compact(recording))


def _compact(events: Sequence[Event]) -> Iterator[Line]:
    known: dict[str, Any] = {}
    asked: dict[str, Event] = {}
    for event in events:
        if event.kind == "nothing":
            continue
        if event.kind == "asked":
            asked[event.reader] = event
            continue
        if event.kind == "granted":
            yield _line(asked[event.reader], known)
        yield _line(event, known)


def _line(event: Event, known: dict[str, Any]) -> Line:
    data = json.loads(json.dumps(event.to_json()))
    for name in ("offset", "start"):
        if name in data and event.kind != "proposed":
            whole = data[name]
            data[name] = SAME if known.get(event.reader) == whole else whole
            known[event.reader] = whole
    if event.kind == "proposed":
        known[event.reader] = data["offset"]
    return data


def write(name: str, lines: Sequence[Line]) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines)
    (FOLDER / f"{name}.jsonl").write_text(text, encoding="ascii")


def read(name: str) -> list[Line] | None:
    """The trace as it was recorded; `None` if there is none."""
    path = FOLDER / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two traces part."""

    line: int
    at_s: float
    where: str
    expected: object
    got: object

    def __str__(self) -> str:
        moment = f"line {self.line}, {self.at_s:.3f} s"
        return f"{moment}: {self.where}: expected {self.expected!r}; got: {self.got!r}"


def first_difference(expected: Sequence[Line], got: Sequence[Line]) -> Difference | None:
    """The first line, and in it the first value, that differs."""
    for number, (old, new) in enumerate(zip(expected, got, strict=False), 1):
        found = next(_differ(old, new, f"{old['kind']} of {old['reader']}"), None)
        if found is not None:
            return Difference(number, float(old["at_s"]), *found)
    if len(expected) != len(got):
        last = (expected if len(expected) > len(got) else got)[min(len(expected), len(got))]
        at = min(len(expected), len(got)) + 1
        return Difference(at, float(last["at_s"]), "lines", len(expected), len(got))
    return None


def _differ(old: object, new: object, where: str) -> Iterator[tuple[str, object, object]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield f"{where}.{key}", old.get(key, "nothing"), new.get(key, "nothing")
            else:
                yield from _differ(old[key], new[key], f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _differ(a, b, f"{where}[{i}]")
    elif isinstance(old, float | int) and isinstance(new, float | int):
        if not math.isclose(old, new, rel_tol=CLOSE, abs_tol=1e-12):
            yield where, old, new
    elif old != new:
        yield where, old, new
