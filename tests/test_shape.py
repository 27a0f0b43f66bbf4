"""The shape of the control plane: no clock and no I/O inside, small classes, values that have types.

And of all packages: shed plans are not told apart by their classes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.config.shed_settings import ShedSettings
from penstock.control.shed.strategies import STRATEGIES
from penstock.grants.plans.base import PlanBase
from penstock.policies.load import LOAD_MANAGERS
from penstock.policies.shedding import SHEDDERS
from penstock.policies.shedding.base import BatchShedder

PACKAGE = Path(penstock.__file__).parent
CONTROL = PACKAGE / "control"
FROM_OUTSIDE = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "logging",
    "math",
    "numpy",
    "numpy.typing",
    "statistics",
    "typing",
}
"""Modules that the control plane may import from outside of Penstock. With none of them it can look at a
clock, open a file, talk to somebody or draw a random number; `NO_NUMPY` has the parts of NumPy that could."""
FROM_PENSTOCK = {
    "penstock.config.flow",
    "penstock.config.shed_settings",
    "penstock.config.shedding",
    "penstock.control",
    "penstock.grants.grant",
    "penstock.grants.offset",
    "penstock.grants.plans",
    "penstock.policies",
    "penstock.streams.tailing.NewSegments",
    "penstock.streams.tailing.StreamInfo",
    "penstock.vocabulary",
}
"""What it may import from Penstock. A module that keeps or reads a log is not among it."""
LOGS = {"StreamIndex", "SegmentReader", "StreamLog", "StreamState", "Tailer"}
"""Names of what reads a log."""
NO_CALLS = {"__import__", "eval", "exec", "input", "open", "print"}
NO_NUMPY = ("np.random", "np.load", "np.save", "np.fromfile", "np.memmap", "np.genfromtxt", "np.datetime64")
"""The parts of NumPy that are not arithmetic."""
KNOWS_PLANS = {"control/shed/strategies/window_history.py"}
"""Modules outside `grants/plans` that tell plans apart: a strategy reads what its own plans decided."""
MOST_ATTRIBUTES = 12
MOST_ARGUMENTS = 6
VALUES = {"backlog/waiting.py:WaitingSegments"}
"""Classes that nobody changes once they are made, and that are not frozen because that would be slow."""
JSON_EDGE = {
    "core/events.py:ChangeClass.changes",  # settings, as a user wrote them
    "core/feasibility.py:FeasibilityReport.to_json",
    "core/instructions.py:ManagerChanged.manager",  # as the record keeps it
    "core/instructions.py:Tell.what",  # a message to a driver
    "core/status.py:closing_report",
    "measure/cost.py:CostModel.restore",
    "measure/cost.py:CostModel.snapshot",
    "measure/cost_store.py:costs_from_json",
    "measure/cost_store.py:costs_to_json",
    "measure/lines.py:ShedLine.to_json",
    "measure/lines.py:SicLine.to_json",
}
"""Where values are written as JSON, or come from a user as JSON."""
ARITHMETIC = {
    "backlog/tail.py:_put_after",  # arrays grow to twice their size
    "backlog/tail.py:_put_before",
    "backlog/tail.py:take_in",  # microseconds
    "backlog/waiting.py:_oldest",  # the middle of two times
    "decide/observing.py:observe",  # no period is empty
    "measure/cost.py:_fit",  # half-lives, rounding
    "measure/cost.py:learn",  # twice a setting
    "measure/delays.py:arrivals",  # four points of a stretch
    "measure/delays.py:stats",  # percentiles
    "measure/first_batches.py:learn",  # halves
    "measure/first_batches.py:most_rows",  # half
    "measure/work.py:learn",  # half-lives
    "measure/work_model.py:learn",  # half-lives
    "schedule/overlap.py:learn",  # rounding
    "schedule/scheduler.py:_tick_s",  # a tick comes half a target after the last batch
    "schedule/turns.py:_alone_s",  # a batch that follows another without a pause is waited for twice
    "shed/capacity_view.py:_of_other",  # the middles of intervals
}
"""Functions with numbers that nobody tuned. Tuned numbers are in `Tuning` and `CostConfig`, with reasons."""


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


def foreign(tree: ast.Module) -> set[str]:
    """What a module of the control plane imports, and may not; relative imports count as well."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name not in FROM_OUTSIDE}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name for name in names if base not in FROM_OUTSIDE and not _is_ours(name)}
    return found


def _is_ours(name: str) -> bool:
    return any(name == allowed or name.startswith(allowed + ".") for allowed in FROM_PENSTOCK)


def outside(tree: ast.Module) -> set[str]:
    """Calls and names with which a module would reach outside without an import."""
    found = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} & NO_CALLS
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(NO_NUMPY):
            found.add(ast.unparse(node))
        named = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}.get(type(node))
        if named is not None and getattr(node, named) in LOGS:
            found.add(getattr(node, named))
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
def test_the_control_plane_has_no_clock_no_files_no_sockets_and_no_logs(tree: ast.Module) -> None:
    assert foreign(tree) == set()
    assert outside(tree) == set()


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import os.path",
        "def f():\n    from datetime import datetime",
        "import pyarrow as pa",
        "from penstock.streams.tailing import Tailer",
        "from penstock.streams import tailing",
        "from penstock.streams.opening import open_stream",
        "from penstock.grants.journal import Journal",
        "from penstock.grants import plansies",
        "from . import backlog",
    ],
)
def test_an_import_that_the_control_plane_may_not_have_is_found(text: str) -> None:
    assert len(foreign(ast.parse(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "open(p)",
        "np.random.default_rng()",
        "np.load(p)",
        "def f(log: StreamLog): ...",
        "x: protocol.StreamLog",
    ],
)
def test_reaching_outside_without_an_import_is_found(text: str) -> None:
    assert outside(ast.parse(text))


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


def plans_asked_for(tree: ast.Module) -> set[str]:
    return classes_asked_for(tree) & {cls.__name__ for cls in subclasses(PlanBase)}


def test_outside_their_package_plans_are_not_told_apart_by_their_classes() -> None:
    asking = set()
    for path in PACKAGE.rglob("*.py"):
        if plans_asked_for(ast.parse(path.read_text(encoding="utf-8"))):
            asking.add(path.relative_to(PACKAGE).as_posix())
    assert {name for name in asking if not name.startswith("grants/plans/")} == KNOWS_PLANS


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(plan, SamplePlan)",
        "isinstance(offset.plan, plans.KeyPlan | ChosenPlan)",
        "type(plan) is WindowPlan",
        "match plan:\n  case UtilityPlan(): pass",
    ],
)
def test_asking_for_a_plan_is_found_in_all_its_forms(text: str) -> None:
    assert plans_asked_for(ast.parse(text))


def test_there_is_a_strategy_for_everything_that_a_shedder_can_choose_among_and_no_other() -> None:
    assert set(STRATEGIES) == {cls.traits.chooses for cls in subclasses(ShedSettings)}


@pytest.mark.parametrize("cls", CLASSES)
def test_a_class_of_the_control_plane_has_at_most_12_attributes_that_change(cls: ast.ClassDef) -> None:
    assert len(mutable_attributes(cls)) <= MOST_ATTRIBUTES, sorted(mutable_attributes(cls))


def arguments(cls: ast.ClassDef) -> list[str]:
    """What a caller gives to make an object of a class. Frozen dataclasses are values, and have none."""
    text = " ".join(ast.unparse(decorator) for decorator in cls.decorator_list)
    if "dataclass" in text:
        fields = [node for node in cls.body if isinstance(node, ast.AnnAssign) and node.value is None]
        return [] if "frozen=True" in text else [ast.unparse(node.target) for node in fields]
    made = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    given = [node.args for node in made]
    return [each.arg for args in given for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)][1:]


@pytest.mark.parametrize("cls", [each for each in CLASSES if each.id not in VALUES])
def test_a_class_of_the_control_plane_is_made_with_at_most_6_arguments(cls: ast.ClassDef) -> None:
    assert len(arguments(cls)) <= MOST_ARGUMENTS, arguments(cls)


@pytest.mark.parametrize(
    "text",
    [
        "class Some:\n  def __init__(self, a, b, c, d, e, f, g): ...",
        "class Some:\n  def __init__(self, a, /, b, c, d, *, e, f, g): ...",
        "@dataclass(slots=True)\nclass Some:\n" + "".join(f"  {name}: int\n" for name in "abcdefg"),
    ],
)
def test_arguments_are_counted_however_a_class_is_made(text: str) -> None:
    (cls,) = ast.parse(text).body
    assert isinstance(cls, ast.ClassDef)
    assert arguments(cls) == list("abcdefg")


def untyped(tree: ast.Module) -> set[str]:
    """Functions and attributes with values that have no type: `Any`, or a container of `object` or JSON."""
    found: set[str] = set()

    def visit(node: ast.AST, within: tuple[str, ...], named: bool) -> None:
        if isinstance(node, ast.ImportFrom | ast.Import):
            return
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            within, named = (*within, node.name), isinstance(node, ast.FunctionDef)
        elif isinstance(node, ast.AnnAssign | ast.Assign) and not named:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            within, named = (*within, ast.unparse(target)), True
        if isinstance(node, ast.Name) and (node.id == "Any" or "json" in node.id.lower().split("_")):
            found.add(".".join(within))
        if isinstance(node, ast.Subscript):
            inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(isinstance(each, ast.Name) and each.id == "object" for each in inside):
                found.add(".".join(within))
        for child in ast.iter_child_nodes(node):
            visit(child, within, named)

    visit(tree, (), False)
    return found


def test_untyped_values_stay_at_the_edge_to_json() -> None:
    found = {
        f"{path.relative_to(CONTROL).as_posix()}:{name}" for path, tree in sources() for name in untyped(tree)
    }
    assert found - JSON_EDGE == set()
    assert JSON_EDGE - found == set(), "an exemption that nobody needs"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("class Some:\n  def f(self, x: dict[str, Any]): ...", "Some.f"),
        ("class Some:\n  x: Mapping[str, object]", "Some.x"),
        ("def f() -> list[object]: ...", "f"),
        ("def f():\n  x: Mapping[str, Any] = {}", "f"),
        ("Settings = dict[str, Any]", "Settings"),
        ("class Some:\n  def f(self) -> JSON: ...", "Some.f"),
    ],
)
def test_values_without_a_type_are_found_in_all_their_forms(text: str, name: str) -> None:
    assert untyped(ast.parse(text)) == {name}


def figures(tree: ast.Module) -> set[str]:
    """Functions with a bare number that somebody may have tuned: a fraction, or a factor other than 1."""
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                numbers = [node] if isinstance(node, ast.Constant) and isinstance(node.value, float) else []
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
                    numbers += [each for each in (node.left, node.right) if isinstance(each, ast.Constant)]
                if any(number.value not in (0, 1) for number in numbers):
                    found.add(function.name)
    return found


def test_figures_to_which_the_control_plane_is_tuned_are_in_one_place() -> None:
    found = {
        f"{path.relative_to(CONTROL).as_posix()}:{name}" for path, tree in sources() for name in figures(tree)
    }
    assert found == ARITHMETIC


def without_reason(tree: ast.Module) -> list[str]:
    """Constants of a module, and fields of its classes, with a number and no docstring below them."""
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    pairs = [pair for body in bodies for pair in zip(body, [*body[1:], ast.Pass()], strict=True)]
    return [
        ast.unparse(node)
        for node, below in pairs
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
    ]


def test_each_figure_of_the_control_plane_has_its_reason() -> None:
    assert without_reason(ast.parse((CONTROL / "tuning.py").read_text(encoding="utf-8"))) == []
    bare = "class Some:\n  a: float = 2.0\n  b: int = 3\n  'why'\nC = 1e-3\nD = 5\n'why'"
    assert without_reason(ast.parse(bare)) == ["C = 0.001", "a: float = 2.0"]


@pytest.mark.parametrize(
    "line", ["x = max(y, 1.5)", "x = target_s / 4", "x = 2 * fixed_s", "if x > 0.02: pass", "x *= 1.005"]
)
def test_a_bare_figure_is_found(line: str) -> None:
    assert figures(ast.parse(f"class Some:\n  def f(self):\n    {line}")) == {"f"}
    assert figures(ast.parse("def f():\n  return min(1.0, x / 1), y[0] + 2, 0.0")) == set()


def test_attributes_are_found_wherever_they_are_set() -> None:
    text = "class Some:\n  def f(self):\n    self.x = 1\n    self.y, self.z = 2, 3\n    self.n += 1"
    (cls,) = ast.parse(text).body
    assert isinstance(cls, ast.ClassDef)
    assert mutable_attributes(cls) == {"x", "y", "z", "n"}
    (frozen,) = ast.parse("@dataclass(frozen=True)\nclass Frozen:\n    x: int").body
    assert isinstance(frozen, ast.ClassDef)
    assert mutable_attributes(frozen) == set()
