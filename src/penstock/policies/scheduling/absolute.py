"""Absolute priority, and the hybrid of absolute and relative (pham2016 6.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.policies.scheduling.base import (
    ClassUse,
    by_priority,
    hand_out,
    kept_back,
    original_shares,
    settle,
    share_out,
)
from penstock.policies.scheduling.dilos import Dilos, Reserving


@dataclass(frozen=True, slots=True)
class Absolute(Reserving):
    """A higher class has all it wants before a lower one has anything, but for what the lower never lends."""

    name: ClassVar[str] = "absolute"

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        originals = original_shares(uses)
        shares = {use.name: kept_back(use, originals[use.name]) for use in uses}
        return share_out(shares, self.wants(uses), uses)


@dataclass(frozen=True, slots=True)
class Hybrid(Reserving):
    """The highest class is absolute; the others share what it leaves as in DILoS."""

    name: ClassVar[str] = "hybrid"

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        originals, total = original_shares(uses), sum(use.share for use in uses)
        first = next(by_priority(uses), [])
        shares = {use.name: kept_back(use, originals[use.name]) for use in uses}
        hand_out(shares, self.wants(uses), first, total - sum(shares.values()))
        above = {use.name: shares[use.name] for use in first}
        rest = [use for use in uses if use.name not in above]
        if not rest:
            return settle(above, uses, total - sum(above.values()))
        left, had = max(0.0, total - sum(above.values())), sum(use.share for use in rest)
        # DILoS divides what it finds: the shares of the others, brought to what is there for them
        found = [use.share * left / had if had > 0 else left / len(rest) for use in rest]
        scaled = [replace(use, share=share) for use, share in zip(rest, found, strict=True)]
        return {**above, **Dilos(self.reserve_fraction).redistribute(scaled)}
