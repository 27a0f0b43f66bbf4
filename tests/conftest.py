"""For all tests: none is timed, big files come first, and Spark's processes start for a short life."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.spark_home import QUICK_OPTIONS, make_spark_home

if TYPE_CHECKING:
    from penstock.sim.microbatch import Lab

settings.register_profile("untimed", deadline=None)  # no example has to end within some milliseconds
settings.load_profile("untimed")

# As in the Makefile: each process would compile all of Penstock again, and pytest would rewrite all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Spark's launcher passes them on, without a word, to all JVMs that tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_OPTIONS)

BIG_FIRST = (
    *("spark/test_run.py", "spark/test_faults.py", "spark/test_estimate.py", "spark/test_cql.py"),
    *("spark/test_killed.py", "spark/test_session.py", "spark/test_cql_families.py", "spark/test_shared.py"),
    *("spark/test_commands.py", "spark/test_cql_sic.py", "spark/test_joins.py", "spark/test_overload.py"),
    *("docs/test_readme.py", "control/test_engine_loop.py", "policies/test_contract.py"),
    *("control/test_class_shedding.py", "sim/test_control.py", "cql/test_engine.py"),
)
"""Two processes share the files: one that takes long must not come last. Run with --no-loadscope-reorder."""


def pytest_configure(config: pytest.Config) -> None:
    """Names Spark's home; xdist's workers, which start later, have it from the first process."""
    if "SPARK_HOME" not in os.environ and (home := make_spark_home(config.rootpath)) is not None:
        os.environ["SPARK_HOME"] = str(home)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Cases that `briefly` leaves out are long; then files by how long they take, a file's order as it is."""
    leave_out_long_cases(items, has_all_cases(config))  # before -m chooses
    yield

    def place(item: pytest.Item) -> int:
        name = "/".join(item.path.parts[-2:])
        return BIG_FIRST.index(name) if name in BIG_FIRST else len(BIG_FIRST)

    items.sort(key=place)


def has_all_cases(config: pytest.Config) -> bool:
    """Whether all cases of each test are collected: none is named, and none is chosen as failed before."""
    return not (config.getoption("lf", default=False) or any("::" in arg for arg in config.args))


def leave_out_long_cases(items: list[pytest.Item], whole: bool) -> None:
    """Marks as long each case of a test that its marker `briefly` does not name.

    Args:
        items: The collected cases.
        whole: Whether all cases of a test are among them, so that the names can be checked.
    """
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("briefly") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test, found in cases.items():
        marker = found[0].get_closest_marker("briefly")
        assert marker is not None
        names = {item: item.callspec.id if hasattr(item, "callspec") else "" for item in found}
        if whole and not (marker.args and set(marker.args) <= set(names.values())):
            known = ", ".join(names.values())
            raise pytest.UsageError(f"{test}: expected: briefly names cases of {known}; got: {marker.args}")
        for item, name in names.items():
            if name not in marker.args:
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected and imported stays to the end: nobody has to look for garbage in it.

    Nor after every 700 new objects: that alone took a twentieth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[Lab]:
    """The virtual cluster of the micro-batch plant, in a test's own directory."""
    from penstock.sim.microbatch import Lab

    made = Lab(tmp_path)
    with made.open:
        yield made
