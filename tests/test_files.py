"""The shape of files: short ones, and protocols of streams that name no place on a disk."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import penstock

SRC = Path(penstock.__file__).parent
MOST_LINES = 400
LONG_FILES = {
    "control/core/engine.py": (480, "every event has its method here"),
    "pipeline/run/runner.py": (419, "a run from its start to its report"),
    "policies/quality/estimates.py": (408, "the estimators share their derivation"),
    "sim/engine/kernel.py": (435, "compiled by numba as one module"),
    "spark/driver/flow.py": (437, "the methods of a flow are its documentation"),
}
"""Files that are longer, how long at most, and why. The numbers only fall: nobody adds a file, or a line."""
PLACES = {
    "streams/protocol.py:StreamState.folder": "the state lies on its drivers' machine, wherever rows are",
}
"""Protocols of streams that name a directory, and why. Of a stream others know its reference alone."""


def too_long(lines: int, most: int | None) -> str | None:
    """What is wrong with the length of a file, if anything is."""
    if most is None:
        return f"{lines} lines: divide it" if lines > MOST_LINES else None
    if lines > most:
        return f"{lines} lines, {most} before: it may only become shorter"
    return None if lines > MOST_LINES else f"{lines} lines: take it off the list"


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.relative_to(SRC).as_posix()) for p in sorted(SRC.rglob("*.py"))]
)
def test_a_file_has_at_most_400_lines_or_a_reason_and_becomes_no_longer(path: Path) -> None:
    most, _ = LONG_FILES.get(path.relative_to(SRC).as_posix(), (None, ""))
    assert too_long(len(path.read_text(encoding="utf-8").splitlines()), most) is None


def test_a_file_that_is_longer_than_it_may_be_or_than_its_number_says_is_found() -> None:
    assert [too_long(*each) is None for each in [(400, None), (401, None)]] == [True, False]
    assert [too_long(*each) is None for each in [(450, 450), (451, 450), (400, 450)]] == [True, False, False]
    assert all((SRC / name).exists() and most > MOST_LINES for name, (most, _) in LONG_FILES.items())


def directories_named(tree: ast.Module) -> set[str]:
    """Methods and attributes of protocols that name a directory or a path."""
    found = set()
    for cls in ast.walk(tree):
        if isinstance(cls, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in cls.bases):
            for node in cls.body:
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                names |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
                names |= {node.name} if isinstance(node, ast.FunctionDef) else set()
                if any("path" in name.lower() or "director" in name.lower() for name in names):
                    of = node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node)
                    found.add(f"{cls.name}.{of}")
    return found


def test_a_protocol_of_streams_names_no_directory() -> None:
    found = {
        f"{path.relative_to(SRC).as_posix()}:{name}"
        for path in sorted((SRC / "streams").rglob("*.py"))
        for name in directories_named(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(PLACES)


@pytest.mark.parametrize(
    "member",
    [
        "def directory(self) -> str: ...",
        "def f(self) -> Path: ...",
        "def f(self, path: str): ...",
        "where: Path",
    ],
)
def test_a_directory_in_a_protocol_is_found(member: str) -> None:
    assert len(directories_named(ast.parse(f"class Log(StreamIndex, Protocol):\n  {member}"))) == 1
