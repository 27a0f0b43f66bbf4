"""What capacity policies have in common: reports of classes, shares by priority, handing out a budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from penstock.vocabulary.errors import InvalidInputError, require_fraction, require_positive
from penstock.vocabulary.model import reject_duplicates


@dataclass(frozen=True, slots=True)
class ClassUse:
    """What a class reports when capacity is redistributed (pham2016 6.1.3).

    Attributes:
        name: The class.
        priority: P_k.
        share: L_Ck, the part of the capacity that the class has now. The shares of all classes add up to the
            whole capacity.
        load: L_k, the part of the capacity that would process all input of the class.
        lendable_fraction: The largest part of its own share that the class lends.
        borrow_limit_fraction: The largest part of the whole capacity that the class borrows.
    """

    name: str
    priority: float
    share: float
    load: float
    lendable_fraction: float = 1.0
    borrow_limit_fraction: float = 1.0

    def __post_init__(self) -> None:
        kind = f"class {self.name}"
        require_positive(f"{kind}: priority", self.priority, "higher means more important, e.g. 6, 3, 1")
        for what, value in (("share", self.share), ("load", self.load)):
            if not 0.0 <= value < float("inf"):
                raise InvalidInputError(f"{kind}: {what} must not be negative", value, "0 if it has none")
        require_fraction(f"{kind}: lendable_fraction", self.lendable_fraction, "0 if it never lends")
        require_fraction(
            f"{kind}: borrow_limit_fraction", self.borrow_limit_fraction, "0 if it never borrows"
        )

    @property
    def usage(self) -> float:
        """u_k = load / share. Above one, the class is overloaded."""
        if self.share > 0:
            return self.load / self.share
        return float("inf") if self.load > 0 else 0.0


class CapacityPolicy(Protocol):
    """Decides which part of the capacity each class has until the next redistribution. Pure."""

    name: ClassVar[str]

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        """The new shares by class. Their sum is the sum of the old shares."""
        ...


def original_shares(uses: Sequence[ClassUse]) -> dict[str, float]:
    """L0_Ck by class: the whole capacity, divided by priority as CQC divides it."""
    reject_duplicates("class", [use.name for use in uses])
    total = sum(use.share for use in uses)
    weight = sum(use.priority for use in uses)
    return {use.name: total * use.priority / weight for use in uses}


def by_priority(uses: Sequence[ClassUse]) -> Iterator[list[ClassUse]]:
    """Groups of classes with equal priority, the highest priority first."""
    ordered = sorted(uses, key=lambda use: (-use.priority, use.name))
    for _, equals in itertools.groupby(ordered, key=lambda use: use.priority):
        yield list(equals)


def hand_out(
    shares: dict[str, float], goals: Mapping[str, float], uses: Sequence[ClassUse], budget: float
) -> float:
    """Raises shares to their goals, the highest priority first; returns what is left of the budget.

    Among classes of equal priority, the smallest share is raised first. No class has more than another class
    of its priority while that class is short of its goal.
    """
    left = budget
    for equals in by_priority(uses):
        short = {use.name for use in equals if goals[use.name] > shares[use.name]}
        while short and left > 0:
            least = min(shares[name] for name in short)
            lowest = {name for name in short if shares[name] == least}
            others = [shares[name] for name in short - lowest]
            level = min([*others, *(goals[name] for name in lowest)])
            if len(lowest) * (level - least) >= left:
                level, left = least + left / len(lowest), 0.0
            else:
                left -= len(lowest) * (level - least)
            for name in lowest:
                shares[name] = level
            short -= {name for name in lowest if shares[name] >= goals[name]}
    return left


def settle(shares: dict[str, float], uses: Sequence[ClassUse], budget: float) -> dict[str, float]:
    """Returns a remaining budget to classes below their original shares. All classes share the very rest."""
    left = hand_out(shares, original_shares(uses), uses, budget)
    weight = sum(use.priority for use in uses)
    return {use.name: shares[use.name] + left * use.priority / weight for use in uses}


def share_out(
    shares: dict[str, float], wants: Mapping[str, float], uses: Sequence[ClassUse]
) -> dict[str, float]:
    """Hands out the capacity that given shares leave: first to classes that want it, then to its owners."""
    left = hand_out(shares, wants, uses, sum(use.share for use in uses) - sum(shares.values()))
    return settle(shares, uses, left)


def kept_back(use: ClassUse, original: float) -> float:
    """The part of its own share that a class never lends."""
    return original * (1.0 - use.lendable_fraction)


def at_most(use: ClassUse, original: float, total: float) -> float:
    """The largest share that a class may have, including what it may borrow."""
    return original + use.borrow_limit_fraction * total
