"""The cases of STREAM whose files a data folder lacks: they are regular, and are written here by their rules.

S1 has the tuple n at instant n, from 1 to 9999; R1 inserts a number at each odd instant and deletes it at the
next. STREAM's own answers are as long, and were compared at their ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.cql.datafiles import find_file
from penstock.vocabulary.errors import InvalidInputError

from .conformance import Case

LAST = 9999
"""The last instant of S1 and R1."""
S1 = range(1, LAST + 1)


def _test2() -> Iterator[str]:
    """Even numbers and their halves."""
    return (f"[{n}]:+:{n // 2}, {n}" for n in S1 if n % 2 == 0)


def _test4() -> Iterator[str]:
    """RSTREAM of what is there now: STREAM does not give it at the last instant."""
    return (f"[{n}]:+:{n}, {n}" for n in S1 if n < LAST)


def _test6() -> Iterator[str]:
    """A half comes when the first of its two numbers does."""
    return (f"[{n}]:+:{n // 2}" for n in S1 if n == 1 or n % 2 == 0)


def _test8() -> Iterator[str]:
    """A number is there for its own instant."""
    for n in S1:
        if n > 1:
            yield f"[{n}]:-:{n - 1}"
        yield f"[{n}]:+:{n}"


def _test9() -> Iterator[str]:
    return (f"[{n}]:{_sign(n)}:{_number(n)}" for n in S1)


def _r1() -> Iterator[str]:
    yield "i,b,i"
    yield from (f"{n},{_sign(n)},{_number(n)}" for n in S1)


def _sign(n: int) -> str:
    return "+" if n % 2 else "-"


def _number(n: int) -> int:
    return (n + 1) // 2


DATA = {"R1": _r1}
ANSWERS = {"test2": _test2, "test4": _test4, "test6": _test6, "test8": _test8, "test9": _test9}


def completed(case: Case, folder: Path) -> Case:
    """A case with the files that are not there yet, written into a folder."""
    expected, data = case.expected, case.data
    if case.name in ANSWERS and not _has(expected, case.name):
        expected = folder / "expected"
        _write(expected / case.name, ANSWERS[case.name]())
    for name, lines in DATA.items():
        if f"'{name}'" in case.query.read_text(encoding="utf-8") and not _has(data, name):
            data = folder / "data"
            _write(data / f"{name}.dat", lines())
    return Case(case.name, case.query, data, expected)


def _has(folder: Path, name: str) -> bool:
    try:
        find_file(folder, name, ".dat")
    except InvalidInputError:
        return False
    return True


def _write(path: Path, lines: Iterator[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
