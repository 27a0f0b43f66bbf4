"""The shape of the tree: packages import in one direction, policies are pure, folders are small."""

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

LAYERS = (
    ("vocabulary",),
    ("policies", "cql", "streams"),
    ("grants",),
    ("lanes", "config"),
    ("control",),
    ("record",),
    ("host",),
    ("spark", "sim", "show"),
    ("pipeline",),
    ("backfill",),
    ("calibration",),
    ("demo", "bench"),
    ("cli",),
)
"""A package imports from layers before its own, and from itself. Plants do not know each other."""
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}
LEAVES = {"testing": ("vocabulary",)}
"""Modules beside the packages, with what they may import."""
ROOT_USES = ("vocabulary", "streams", "spark")
"""`import penstock` gives what Spark applications use."""


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
    """What a module imports against the rule; imports inside of functions count as well."""
    part = [*module.split("."), ""][1]
    if part == "policies":
        return [name for name in imports(module, source) if not _pure(name)]
    if module == "penstock.__main__":  # `python -m penstock` is the CLI's other door
        return []
    ours = [name for name in imports(module, source) if _within(name, "penstock")]
    return [name for name in ours if not _may(part, name)]


def _may(part: str, name: str) -> bool:
    """Whether a package, or a module beside the packages, may import a name of Penstock."""
    used = [*name.split("."), ""][1]
    if part in ("", "__init__"):
        return used in ROOT_USES
    if used in LEAVES:
        return part != "vocabulary"
    if part in LEAVES:
        return used in LEAVES[part]
    return used == part or RANK.get(used, len(LAYERS)) < RANK[part]


def _pure(name: str) -> bool:
    top, _, _ = name.partition(".")
    if top in sys.stdlib_module_names:
        return top not in IMPURE
    return _within(name, "numpy", "penstock.vocabulary", "penstock.policies")


def _within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize(("module", "source"), [pytest.param(m, s, id=m) for m, s in modules()])
def test_a_module_imports_only_what_its_layer_may(module: str, source: str) -> None:
    assert violations(module, source) == []


IMPLEMENTATIONS = ("penstock.streams.embedded", "penstock.streams.paced", "penstock.streams.flight.client")
"""Who keeps a stream is known to `penstock.streams.opening`, and to nobody outside the package."""


def implementations_named(module: str, source: str) -> list[str]:
    """Modules that keep streams, and that a module outside `streams` imports."""
    if module.startswith("penstock.streams."):
        return []
    return [name for name in imports(module, source) if _within(name, *IMPLEMENTATIONS)]


@pytest.mark.parametrize(("module", "source"), [pytest.param(m, s, id=m) for m, s in modules()])
def test_nobody_outside_streams_knows_who_keeps_a_stream(module: str, source: str) -> None:
    assert implementations_named(module, source) == []


def test_the_rule_about_streams_catches() -> None:
    bad = "def f():\n    from penstock.streams.embedded.log import EmbeddedLog"
    assert implementations_named("penstock.spark.bad", bad) != []
    assert implementations_named("penstock.streams.opening", bad) == []


def test_every_package_has_a_layer_and_every_layer_is_there() -> None:
    assert set(RANK) == {path.parent.name for path in ROOT.glob("*/__init__.py")}


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(path, id=path.relative_to(ROOT.parent).as_posix())
        for path in sorted(ROOT.rglob("*"))
        if (path / "__init__.py").exists()
    ],
)
def test_a_folder_has_at_most_12_files(folder: Path) -> None:
    files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= 12


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.policies.load.bad", "import time"),
        ("penstock.policies.load.bad", "def f():\n    from os.path import join"),
        ("penstock.policies.load.bad", "import pyspark"),
        ("penstock.policies.load.bad", "from penstock.control.decide.cycle import Cycle"),
        ("penstock.policies.load.bad", "from ...sim import engine"),
        ("penstock.policies.load.bad", "from penstock import sim"),
        ("penstock.control.bad", "from penstock.sim.engine.plant import SimulatedPlant"),
        ("penstock.control.__init__", "from ..spark import attach"),
        ("penstock.control.bad", "import penstock.cli"),
        ("penstock.sim.bad", "from penstock import spark"),
        ("penstock.spark.bad", "import penstock.sim.engine.plant as engine"),
        ("penstock.vocabulary.model", "from penstock.cli import main"),
        ("penstock.__init__", "from . import cli"),
    ],
)
def test_the_rule_catches(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "penstock.policies.load.good",
            "import math\nimport numpy as np\nfrom ...vocabulary.model import Decision",
        ),
        ("penstock.policies.load.__init__", "from . import ctrl"),
        ("penstock.control.good", "import time\nfrom penstock.policies.load import manager_config"),
        ("penstock.simple.good", "import penstocks.cli"),
        ("penstock.cli.good", "import penstock.cli.simulated.replay, penstock.sim, penstock.spark"),
    ],
)
def test_the_rule_lets_pass(module: str, source: str) -> None:
    assert violations(module, source) == []
