"""Runs seeds, and makes a case that fails smaller."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .case import Case, draw


@dataclass(frozen=True)
class Failure:
    """A case that fails, and how."""

    case: Case
    kind: str
    text: str


def run_case(case: Case) -> Failure | None:
    """Runs one case; `None` where everything held."""
    from .world import World

    try:
        with World(case) as world:
            world.run()
    except Exception as error:
        return Failure(case, type(error).__name__, "".join(traceback.format_exception(error)))
    return None


def run_seed(seed: int, seconds: float) -> Failure | None:
    return run_case(draw(seed, seconds))


def smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them."""
    if case.seconds > 1.0:
        yield replace(case, seconds=case.seconds / 2)
        yield replace(case, seconds=case.seconds * 0.8)
    for feature in sorted(case.features):
        yield replace(case, features=case.features - {feature})
    for query in case.queries:
        others = tuple(q for q in case.queries if q is not query and q.behind != query.name)
        if others:
            yield replace(case, queries=others)
    read = {name for query in case.queries for name in query.streams}
    unread = tuple(stream for stream in case.streams if stream.name in read)
    if unread != case.streams:
        yield replace(case, streams=unread)
    classes = {query.cls for query in case.queries}
    if classes != set(case.classes):
        yield replace(case, classes={name: case.classes[name] for name in case.classes if name in classes})


def shrink(failure: Failure, most: int = 60) -> Failure:
    """The smallest case that was found to fail in the same way, after at most so many runs."""
    runs, again = 0, True
    while again:
        again = False
        for case in smaller(failure.case):
            if runs >= most:
                return failure
            runs += 1
            found = run_case(case)
            if found is not None and found.kind == failure.kind:
                failure, again = found, True
                break
    return failure
