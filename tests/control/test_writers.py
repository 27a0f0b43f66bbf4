"""Each piece of a query's state has one writer: one module assigns it, whoever else reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import penstock
from penstock.control.backlog.backlog import QueryBacklog
from penstock.control.state.lease import Lease, Terms
from penstock.control.state.query import (
    Query,
    QueryCost,
    QueryFlags,
    QueryQuestion,
    QueryResults,
    QueryShedding,
    QueryTurn,
    Reader,
)

CONTROL = Path(penstock.__file__).parent / "control"
PARTS = {
    "backlog": QueryBacklog,
    "costs": QueryCost,
    "flags": QueryFlags,
    "lease": Lease,
    "question": QueryQuestion,
    "query": Query,
    "reader": Reader,
    "results": QueryResults,
    "shedding": QueryShedding,
    "turn": QueryTurn,
}
"""Parts by the name under which other modules have them: `query.turn`, or `turn`."""
ATTRIBUTES = {
    name: vars(Lease(Terms(0.0))).keys() if cls is Lease else {each.name for each in fields(cls)}  # type: ignore[arg-type]
    for name, cls in PARTS.items()
}
CHANGES = {"add", "append", "clear", "discard", "extend", "pop", "popleft", "remove", "setdefault", "update"}
"""Methods that change a dictionary, a set or a queue."""

Written = tuple[str, str]
"""A part and its attribute."""


def written(text: str) -> set[Written]:
    """What a module writes of the parts of queries: assigns, deletes, or changes as a container."""
    found: set[Written] = set()
    tree = ast.parse(text)
    names = {cls.__name__: part for part, cls in PARTS.items()}
    loose: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for function in node.body:
                found.update(_of_scope(function, {"self": names[node.name]} if node.name in names else {}))
        elif isinstance(node, ast.FunctionDef):
            found.update(_of_scope(node, {}))
        else:
            loose.append(node)
    return found.union(_of_scope(ast.Module(loose, []), {}))


def _of_scope(scope: ast.AST, known: Mapping[str, str]) -> Iterator[Written]:
    names = {**{part: part for part in PARTS}, **known}
    containers: dict[str, Written] = {}
    for target, value in _assigned(scope):
        if isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
            if value.attr in PARTS:  # state = query.turn
                names[target.id] = value.attr
            elif (part := _part(value.value, names)) is not None:  # noted = query.results.noted
                containers[target.id] = part, value.attr
    for node in _changed(scope):
        inner = node
        through = False
        while isinstance(inner, ast.Subscript):
            inner, through = inner.value, True
        if isinstance(inner, ast.Attribute):
            part = _part(inner.value, names)
            if part is not None and inner.attr in ATTRIBUTES[part]:
                yield part, inner.attr
        elif isinstance(inner, ast.Name) and through and inner.id in containers:
            yield containers[inner.id]


def _part(owner: ast.expr, names: Mapping[str, str]) -> str | None:
    """Which part an expression stands for, by its last name."""
    if isinstance(owner, ast.Attribute):
        return owner.attr if owner.attr in PARTS else None
    return names.get(owner.id) if isinstance(owner, ast.Name) else None


def _assigned(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Targets with their values, one by one."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=True)
                elif isinstance(target, ast.Tuple):
                    yield from ((each, None) for each in target.elts)
                else:
                    yield target, node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            yield node.target, node.value


def _changed(scope: ast.AST) -> Iterator[ast.expr]:
    """Expressions that are assigned, deleted, or changed as a container."""
    yield from (target for target, _ in _assigned(scope))
    for node in ast.walk(scope):
        if isinstance(node, ast.Delete):
            yield from node.targets
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        ):
            yield ast.Subscript(node.func.value, ast.Constant(0))


def writers() -> dict[Written, list[str]]:
    """By attribute of a part, the modules that write it."""
    found: dict[Written, list[str]] = {}
    for path in sorted(CONTROL.rglob("*.py")):
        for each in written(path.read_text(encoding="utf-8")):
            found.setdefault(each, []).append(path.relative_to(CONTROL).as_posix())
    return found


def test_each_attribute_of_a_querys_parts_is_assigned_in_one_module() -> None:
    assert {each: modules for each, modules in writers().items() if len(modules) > 1} == {}


def test_the_writer_of_a_part_is_the_one_that_its_docstring_names() -> None:
    by_part: dict[str, set[str]] = {}
    for (part, _), modules in writers().items():
        by_part.setdefault(part, set()).update(modules)
    assert by_part == {
        "backlog": {"backlog/backlog.py"},
        "costs": {"state/query.py"},
        "flags": {"state/query.py"},
        "lease": {"state/lease.py"},
        "query": {"core/members.py", "state/query.py"},
        "question": {"core/questions.py"},
        "reader": {"core/engine.py"},
        "results": {"measure/ledger.py"},
        "shedding": {"core/granting.py"},
        "turn": {"core/leases.py", "state/query.py"},
    }


def test_writing_is_found_in_all_its_forms() -> None:
    cases = {
        "query.turn.batches += 1": ("turn", "batches"),
        "a, winner.question.open = 1, None": ("question", "open"),
        "a, q.turn.done_s = f()": ("turn", "done_s"),
        "x = y.turn.lease = 1": ("turn", "lease"),
        "state = q.flags; state.refused = True": ("flags", "refused"),
        "noted = query.results.noted; noted[0] = 1": ("results", "noted"),
        "query.results.noted.append(1)": ("results", "noted"),
        "q.backlog.seen_ends['r'][0] = 1": ("backlog", "seen_ends"),
        "del query.readers[a]": ("query", "readers"),
        "x.lease.answered.update(y)": ("lease", "answered"),
        "class QueryTurn:\n  def f(self): self.lease = None": ("turn", "lease"),
    }
    for text, expected in cases.items():
        assert written(text) == {expected}, text
    for text in ("turn = query.turn", "x = query.turn.lease", "query.other.lease_s = 1", "self.lease = 1"):
        assert written(text) == set(), text
