"""The shape of the control plane: no clock and no I/O inside, small classes, values that have types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.config.shed_settings import ShedSettings
from penstock.control.shed.strategies import STRATEGIES
from penstock.policies.load import LOAD_MANAGERS
from penstock.policies.shedding import SHEDDERS
from penstock.policies.shedding.base import BatchShedder

CONTROL = Path(penstock.__file__).parent / "control"
OUTSIDE = {
    "asyncio",
    "io",
    "os",
    "pathlib",
    "random",
    "selectors",
    "socket",
    "subprocess",
    "threading",
    "time",
}
"""Modules with which the engine could look at a clock, open a file or talk to somebody."""
MOST_ATTRIBUTES = 12
JSON_EDGE = {"cost_store.py", "cost.py", "feasibility.py", "status.py", "events.py"}
"""Files in which values are written as JSON, or come from a user as JSON."""


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(CONTROL.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


SOURCES = [pytest.param(tree, id=path.relative_to(CONTROL).as_posix()) for path, tree in sources()]
CLASSES = [
    pytest.param(node, id=f"{path.relative_to(CONTROL).as_posix()}:{node.name}")
    for path, tree in sources()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
]


def imported(tree: ast.Module) -> set[str]:
    """Top-level names of what a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def mutable_attributes(cls: ast.ClassDef) -> set[str]:
    """Attributes of a class that can change: all but those of a frozen dataclass."""
    text = " ".join(ast.unparse(decorator) for decorator in cls.decorator_list)
    if "frozen=True" in text:
        return set()
    fields = set()
    if "dataclass" in text:
        fields = {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    for node in ast.walk(cls):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self":
                    fields.add(each.attr)
    return fields


@pytest.mark.parametrize("tree", SOURCES)
def test_the_control_plane_has_no_clock_and_no_files_and_no_sockets(tree: ast.Module) -> None:
    assert imported(tree) & OUTSIDE == set()
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"open", "print", "input"}


def subclasses(cls: type) -> Iterator[type]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def settings_and_policies() -> set[str]:
    """Names of the classes of settings, and of shedders and load managers with their configurations."""
    families = [*subclasses(ShedSettings), *subclasses(BatchShedder), *SHEDDERS.values()]
    families += [cls for config in LOAD_MANAGERS.values() for cls in (config, type(config().build()))]
    return {cls.__name__ for cls in families} | {"ShedSettings", "BatchShedder"}


def classes_asked_for(tree: ast.Module) -> set[str]:
    """Names of classes that a module tells objects apart by: in `isinstance`, `type(x) is`, or `case`."""
    asked: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked.append(node.args[1])
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node.left):
            asked += node.comparators
        elif isinstance(node, ast.MatchClass):
            asked.append(node.cls)
    found = [each for expression in asked for each in ast.walk(expression)]
    names = {each.id for each in found if isinstance(each, ast.Name)}
    return names | {each.attr for each in found if isinstance(each, ast.Attribute)}


@pytest.mark.parametrize("tree", SOURCES)
def test_the_control_plane_does_not_ask_which_settings_or_which_policy_it_has(tree: ast.Module) -> None:
    assert classes_asked_for(tree) & settings_and_policies() == set()


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(x, WindowSettings)",
        "isinstance(x, int | config.SemanticSettings)",
        "isinstance(x, (BalanceSicShedder, str))",
        "type(x) is BalanceSicConfig",
        "match x:\n  case DeadlineConfig(): pass",
    ],
)
def test_asking_for_a_policy_is_found_in_all_its_forms(text: str) -> None:
    assert len(classes_asked_for(ast.parse(text)) & settings_and_policies()) == 1


def test_there_is_a_strategy_for_everything_that_a_shedder_can_choose_among_and_no_other() -> None:
    assert set(STRATEGIES) == {cls.traits.chooses for cls in subclasses(ShedSettings)}


@pytest.mark.parametrize("cls", CLASSES)
def test_a_class_of_the_control_plane_has_at_most_12_attributes_that_change(cls: ast.ClassDef) -> None:
    assert len(mutable_attributes(cls)) <= MOST_ATTRIBUTES, sorted(mutable_attributes(cls))


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.relative_to(CONTROL).as_posix()) for p, _ in sources()]
)
def test_untyped_values_stay_at_the_edge_to_json(path: Path) -> None:
    if path.name not in JSON_EDGE:
        assert "Any]" not in path.read_text(encoding="utf-8")


def test_attributes_are_found_wherever_they_are_set() -> None:
    text = "class Some:\n  def f(self):\n    self.x = 1\n    self.y, self.z = 2, 3\n    self.n += 1"
    (cls,) = ast.parse(text).body
    assert isinstance(cls, ast.ClassDef)
    assert mutable_attributes(cls) == {"x", "y", "z", "n"}
    (frozen,) = ast.parse("@dataclass(frozen=True)\nclass Frozen:\n    x: int").body
    assert isinstance(frozen, ast.ClassDef)
    assert mutable_attributes(frozen) == set()
