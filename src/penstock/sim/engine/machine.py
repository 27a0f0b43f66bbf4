"""The machine of the simulated engine: its speed over virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from penstock.vocabulary.errors import InvalidInputError, require_positive


@dataclass(frozen=True)
class Machine:
    """A machine over virtual time.

    Attributes:
        headroom: (from_s, fraction) steps: the part of the CPU that query processing gets. A
            background job is a step down.
        cost_factor: (from_s, factor) steps that multiply every operator's cost (tu2006 fig. 14).
    """

    headroom: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    cost_factor: tuple[tuple[float, float], ...] = ((0.0, 1.0),)

    def __post_init__(self) -> None:
        for name, steps in (("headroom", self.headroom), ("cost factor", self.cost_factor)):
            if not steps or steps[0][0] != 0.0:
                raise InvalidInputError(
                    f"{name} steps start at 0 s", steps[:1], f"({name!r}: (0.0, value), ...)"
                )
            if any(later < sooner for (sooner, _), (later, _) in pairwise(steps)):
                raise InvalidInputError(
                    f"{name} steps follow each other in time", steps, "sort them by from_s"
                )
            for _, value in steps:
                require_positive(name, value, "a background job leaves at least a little")
