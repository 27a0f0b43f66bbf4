"""A short stateful fuzz; the long one is `penstock bench run micro/fuzz`. Imports pyspark, starts no JVM."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
from tests.effort import tries

from penstock.bench import load_benches

pytest.importorskip("pyspark")

SECONDS = 6.0
SEEDS = range(1000, 1000 + tries(3, 24))


@pytest.fixture(scope="module")
def fuzz() -> Any:
    """The modules of the bench, by name."""
    package = load_benches()["micro/fuzz"].function.__module__.rpartition(".")[0]

    class Modules:
        def __getattr__(self, name: str) -> Any:
            return importlib.import_module(f"{package}.fuzz.{name}")

    return Modules()


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_books_rows_replays_and_lanes_agree(fuzz: Any, seed: int) -> None:
    failure = fuzz.shrink.run_seed(seed, SECONDS)
    if failure is not None:
        smallest = fuzz.shrink.shrink(failure, 20)
        pytest.fail(f"{smallest.case.described()}\n{smallest.text}")


def test_a_case_does_the_same_each_time_and_much_of_it(fuzz: Any) -> None:
    tallies = []
    for _ in range(2):
        with fuzz.world.World(fuzz.case.draw(SEEDS[0], SECONDS)) as world:
            world.run()
            offsets = [
                replace(o, stream="") for q in world.running.values() for o in q.query.offsets.values()
            ]
            tallies.append((world.tally(), offsets))
    assert tallies[0] == tallies[1]
    assert min(tallies[0][0][what] for what in ("grants", "checks", "rows admitted")) > 5


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.long), 17])
def test_the_sources_of_the_plant_make_the_same_offsets_as_the_real_ones(fuzz: Any, seed: int) -> None:
    same = frozenset({"crash", "quiet", "hush", "replace", "change", "lose"})
    case = replace(fuzz.case.draw(seed, SECONDS), features=same)
    found = []
    for real in (True, False):
        with fuzz.world.World(case, real) as world:
            world.run()
            batches = [b for running in world.running.values() for b in running.query.batches]
            found.append([(b.began_s, replace(b.offset, stream="")) for b in batches])
    assert found[0] == found[1]
    assert len(found[0]) > 10


@pytest.mark.parametrize("name", ["replay forgets the plan's seed", "late rows count as admitted"])
def test_a_planted_defect_is_noticed(fuzz: Any, name: str) -> None:
    found = fuzz.mutations.caught(name, PLANTED[name], 1, 2 * SECONDS)
    assert found is not None
    assert found[1].kind == "BrokenError"


PLANTED = {"replay forgets the plan's seed": 9, "late rows count as admitted": 2}
"""By defect, a seed that notices it soon; the bench looks for one."""


@pytest.mark.long
def test_a_case_that_fails_is_made_smaller_and_still_fails(fuzz: Any) -> None:
    name = "late rows count as admitted"
    with fuzz.mutations.MUTATIONS[name]():
        failure = fuzz.shrink.run_seed(PLANTED[name], 2 * SECONDS)
        smallest = fuzz.shrink.shrink(failure, 6)
    before, after = failure.case, smallest.case
    assert len(after.queries) + len(after.features) < len(before.queries) + len(before.features)
    assert smallest.kind == failure.kind
    assert f"seed {PLANTED[name]}" in after.described()
