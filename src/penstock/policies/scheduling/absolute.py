"""Absolute priority, and the hybrid of absolute and relative (pham2016 6.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.errors import require_fraction
from penstock.policies.scheduling.base import (
    ClassUse,
    by_priority,
    hand_out,
    kept_back,
    original_shares,
    settle,
)
from penstock.policies.scheduling.dilos import RESERVE_FRACTION, Dilos, wanted


@dataclass(frozen=True, slots=True)
class Absolute:
    """A higher class has all it wants before a lower one has anything, but for what the lower never lends."""

    reserve_fraction: float = RESERVE_FRACTION
    name: ClassVar[str] = "absolute"

    def __post_init__(self) -> None:
        require_fraction("reserve_fraction", self.reserve_fraction, "0.05 in pham2016")

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        originals = original_shares(uses)
        total = sum(use.share for use in uses)
        wants = {use.name: wanted(use, originals[use.name], total, self.reserve_fraction) for use in uses}
        shares = {use.name: kept_back(use, originals[use.name]) for use in uses}
        left = hand_out(shares, wants, uses, total - sum(shares.values()))
        return settle(shares, uses, left)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The highest class is absolute; the others share what it leaves as in DILoS."""

    reserve_fraction: float = RESERVE_FRACTION
    name: ClassVar[str] = "hybrid"

    def __post_init__(self) -> None:
        require_fraction("reserve_fraction", self.reserve_fraction, "0.05 in pham2016")

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        originals = original_shares(uses)
        total = sum(use.share for use in uses)
        first = next(by_priority(uses), [])
        wants = {use.name: wanted(use, originals[use.name], total, self.reserve_fraction) for use in first}
        shares = {use.name: kept_back(use, originals[use.name]) for use in uses}
        hand_out(shares, wants, first, total - sum(shares.values()))
        above = {use.name: shares[use.name] for use in first}
        rest = [use for use in uses if use.name not in above]
        if not rest:
            return settle(above, uses, total - sum(above.values()))
        left, had = max(0.0, total - sum(above.values())), sum(use.share for use in rest)
        # DILoS divides what it finds: the shares of the others, brought to what is there for them
        found = [use.share * left / had if had > 0 else left / len(rest) for use in rest]
        scaled = [replace(use, share=share) for use, share in zip(rest, found, strict=True)]
        return {**above, **Dilos(self.reserve_fraction).redistribute(scaled)}
