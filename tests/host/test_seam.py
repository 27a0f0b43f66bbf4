"""Hosts know the methods of an engine, and not of which parts it consists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import penstock

HOST = Path(penstock.__file__).parent / "host"
VALUES = {"config"}
"""Attributes of an engine that are plain values."""


def reached_through(text: str) -> list[str]:
    """Where a module uses a part of an engine: `engine.members.queries`, `self.engine.granting.on`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            owner = node.value.value
            name = owner.attr if isinstance(owner, ast.Attribute) else ast.unparse(owner)
            if name.strip("_") == "engine" and node.value.attr not in VALUES:
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", [pytest.param(p, id=p.name) for p in sorted(HOST.glob("*.py"))])
def test_a_host_reaches_through_no_part_of_the_engine(path: Path) -> None:
    assert reached_through(path.read_text(encoding="utf-8")) == []


def test_reaching_through_is_found() -> None:
    assert reached_through("x = engine.members.queries") == ["engine.members.queries"]
    assert reached_through("if self.engine.granting.on: pass") == ["self.engine.granting.on"]
    assert reached_through("desk._engine.questions.pending.pop(q)") == ["desk._engine.questions.pending"]
    assert reached_through("self.engine.config.trim, engine.costs().items()") == []
