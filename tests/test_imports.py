"""The import rule: policies import the model alone, control no plant, plants not each other, none the CLI."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent
IMPURE = {"time", "random", "os", "pathlib", "io"}
"""A policy has no clock, no randomness of its own and no I/O."""

FORBIDDEN = {
    "control": ("spark", "sim", "cli"),
    "sim": ("spark", "cli"),
    "spark": ("sim", "cli"),
    "": ("cli",),  # every other module
}


def modules() -> Iterator[tuple[str, str]]:
    """Dotted name and source of every module."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("penstock", *path.relative_to(ROOT).with_suffix("").parts)
        yield ".".join(parts), path.read_text(encoding="utf-8")


def imports(module: str, source: str) -> list[str]:
    """Dotted names that a module imports, anywhere in it; `module` of a package ends in `.__init__`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]  # `from penstock import sim` too
    return found


def violations(module: str, source: str) -> list[str]:
    """What a module imports against the rule."""
    part = [*module.split("."), ""][1]
    if part == "policies":
        return [name for name in imports(module, source) if not _pure(name)]
    if part == "cli" or module == "penstock.__main__":  # `python -m penstock` is the CLI's other door
        return []
    forbidden = FORBIDDEN.get(part, FORBIDDEN[""])
    return [name for name in imports(module, source) if _within(name, *(f"penstock.{f}" for f in forbidden))]


def _pure(name: str) -> bool:
    top, _, _ = name.partition(".")
    if top in sys.stdlib_module_names:
        return top not in IMPURE
    return _within(name, "numpy", "penstock.model", "penstock.errors", "penstock.policies")


def _within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize(("module", "source"), [pytest.param(m, s, id=m) for m, s in modules()])
def test_a_module_imports_only_what_its_layer_may(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_the_layers_that_the_rule_names_are_there() -> None:
    parts = {module.split(".")[1] for module, _ in modules()}
    assert {"policies", "control", "sim", "cli", "model", "errors"} <= parts


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.policies.load.bad", "import time"),
        ("penstock.policies.load.bad", "def f():\n    from os.path import join"),
        ("penstock.policies.load.bad", "import pyspark"),
        ("penstock.policies.load.bad", "from penstock.control.cycle import Cycle"),
        ("penstock.policies.load.bad", "from ...sim import engine"),
        ("penstock.policies.load.bad", "from penstock import sim"),
        ("penstock.control.bad", "from penstock.sim.engine import SimulatedPlant"),
        ("penstock.control.__init__", "from ..spark import attach"),
        ("penstock.control.bad", "import penstock.cli"),
        ("penstock.sim.bad", "from penstock import spark"),
        ("penstock.spark.bad", "import penstock.sim.engine as engine"),
        ("penstock.model", "from penstock.cli import main"),
        ("penstock.__init__", "from . import cli"),
    ],
)
def test_the_rule_catches(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.policies.load.good", "import math\nimport numpy as np\nfrom ...model import Decision"),
        ("penstock.policies.load.__init__", "from . import ctrl"),
        ("penstock.control.good", "import time\nfrom penstock.policies.load import manager_config"),
        ("penstock.sim.good", "from penstock.simple import x"),
        ("penstock.cli.good", "import penstock.cli.replay, penstock.sim, penstock.spark"),
    ],
)
def test_the_rule_lets_pass(module: str, source: str) -> None:
    assert violations(module, source) == []
