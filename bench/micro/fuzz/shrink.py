"""Runs seeds, and makes a case that fails smaller."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .case import Case, draw


@dataclass(frozen=True)
class Failure:
    """A case that fails, and how."""

    case: Case
    kind: str
    text: str

    @property
    def said(self) -> str:
        """Its last line."""
        return self.text.strip().splitlines()[-1]


def run_case(case: Case, tally: Counter[str] | None = None) -> Failure | None:
    """Runs one case; `None` where everything held. `tally` is told what there was."""
    from .world import World

    try:
        with World(case) as world:
            world.run()
            if tally is not None:
                tally.update(world.tally())
    except Exception as error:
        return Failure(case, type(error).__name__, "".join(traceback.format_exception(error)))
    return None


def run_seed(seed: int, seconds: float) -> Failure | None:
    return run_case(draw(seed, seconds))


def smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them, the largest cuts first."""
    for query in case.queries:
        others = tuple(q for q in case.queries if q is not query and q.behind != query.name)
        if others:
            yield replace(case, queries=others)
    if case.features:
        yield replace(case, features=frozenset())
    half = sorted(case.features)[: len(case.features) // 2]
    if len(case.features) > 3:
        yield replace(case, features=frozenset(half))
        yield replace(case, features=case.features - frozenset(half))
    if case.seconds > 1.0:
        yield replace(case, seconds=case.seconds / 2)
    for feature in sorted(case.features):
        yield replace(case, features=case.features - {feature})
    if case.seconds > 1.0:
        yield replace(case, seconds=case.seconds * 0.8)


def tidied(case: Case) -> Case:
    """Without streams and classes that nobody uses any more."""
    read = {name for query in case.queries for name in query.streams}
    used = {query.cls for query in case.queries}
    return replace(
        case,
        streams=tuple(stream for stream in case.streams if stream.name in read),
        classes={name: config for name, config in case.classes.items() if name in used},
    )


def shrink(failure: Failure, most: int = 60) -> Failure:
    """The smallest case that was found to fail in the same way, after at most so many runs."""
    runs, again = 0, True
    while again and runs < most:
        again = False
        for case in (tidied(failure.case), *smaller(failure.case)):
            if case == failure.case or runs >= most:
                continue
            runs += 1
            found = run_case(case)
            if found is not None and found.kind == failure.kind:
                failure, again = found, True
                break
    return failure
