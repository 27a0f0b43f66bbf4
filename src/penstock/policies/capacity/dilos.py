"""DILoS: capacity is redistributed by demand and supply (pham2016 6.1.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.policies.capacity.base import (
    ClassUse,
    at_most,
    kept_back,
    original_shares,
    share_out,
)
from penstock.vocabulary.errors import require_fraction

RESERVE_FRACTION = 0.05
"""Part of its original share that a class keeps beyond its load, so that small swings do not overload it."""


def wanted(use: ClassUse, original: float, total: float, reserve_fraction: float) -> float:
    """The share that a class would end up with if it were alone.

    A class with demand (u > 1) wants its load. A class with supply wants its load and the reserve. A class
    between demand and supply wants the share that it has, so that no capacity moves while loads are steady.
    """
    reserve = reserve_fraction * original
    share = min(max(use.share, use.load), use.load + reserve)
    return min(max(share, kept_back(use, original)), at_most(use, original, total))


@dataclass(frozen=True, slots=True)
class Reserving:
    """The setting that all policies which move capacity have in common: the reserve.

    Attributes:
        reserve_fraction: Part of its original share that a class keeps beyond its load.
    """

    reserve_fraction: float = RESERVE_FRACTION

    def __post_init__(self) -> None:
        require_fraction("reserve_fraction", self.reserve_fraction, "0.05 in pham2016")

    def wants(self, uses: Sequence[ClassUse]) -> dict[str, float]:
        """By class, the share that it would have if it were alone."""
        originals, total = original_shares(uses), sum(use.share for use in uses)
        return {use.name: wanted(use, originals[use.name], total, self.reserve_fraction) for use in uses}


@dataclass(frozen=True, slots=True)
class Dilos(Reserving):
    """Redundant capacity goes to the classes in need, the highest priority first.

    1. A class keeps as much of its original share as it wants.
    2. The capacity that no class wants for itself meets the demands of others, the highest priority first.
    3. What then remains goes back to classes below their original shares, the highest priority first.

    The paper hands out only what classes supply *now*: a class that borrowed earlier would keep the capacity
    while a higher class goes short. Here borrowed capacity is redistributed every time, so the result does
    not depend on which class asked first. A class takes its own share back from the borrowers of the lowest
    priority.
    """

    name: ClassVar[str] = "dilos"

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        originals, wants = original_shares(uses), self.wants(uses)
        shares = {name: min(originals[name], want) for name, want in wants.items()}
        return share_out(shares, wants, uses)
