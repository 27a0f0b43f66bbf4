"""Defects that are planted to see that the fuzz can fail. Each is one change of the code, while it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from unittest import mock

import penstock.spark.source.planner as planner_module
from penstock.grants.offset import Books, Offset
from penstock.grants.selection import Selection
from penstock.spark.source.planner import Planner

from .shrink import Failure, run_seed


@contextmanager
def forgets_the_seed() -> Iterator[None]:
    """A batch that runs again in a new process tosses other coins: its plan's seed is not read back."""
    honest = Planner._selections

    def forgetful(self: Planner, offset: Offset) -> list[Selection]:
        # a plan that names its segments has no coins to toss anew
        if self._selected is None and hasattr(offset.plan, "seed"):
            offset = replace(offset, plan=replace(offset.plan, seed=offset.plan.seed + 1))
        return honest(self, offset)

    with mock.patch.object(Planner, "_selections", forgetful):
        yield


@contextmanager
def admits_late_rows() -> Iterator[None]:
    """The books count rows that are shed as late as admitted."""
    honest = planner_module.grant_books

    def generous(*given: object) -> Books:
        books = honest(*given)  # type: ignore[arg-type]
        return replace(books, admitted=books.admitted + books.late, late=0)

    with mock.patch.object(planner_module, "grant_books", generous):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "replay forgets the plan's seed": forgets_the_seed,
    "late rows count as admitted": admits_late_rows,
}


def caught(name: str, first_seed: int, seeds: int, seconds: float) -> tuple[int, Failure] | None:
    """The first seed that notices a mutation, and how; `None` where none of so many does."""
    with MUTATIONS[name]():
        for seed in range(first_seed, first_seed + seeds):
            failure = run_seed(seed, seconds)
            if failure is not None:
                return seed, failure
    return None
