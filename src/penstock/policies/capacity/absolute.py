"""Absolute priority, and the hybrid of absolute and relative (pham2016 6.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.policies.capacity.base import (
    ClassUse,
    by_priority,
    hand_out,
    kept_back,
    original_shares,
    settle,
    share_out,
)
from penstock.policies.capacity.dilos import Reserving


@dataclass(frozen=True, slots=True)
class Absolute(Reserving):
    """A higher class has all it wants before a lower class has more than the part that it never lends."""

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
        originals, total, wants = original_shares(uses), sum(use.share for use in uses), self.wants(uses)
        first = next(by_priority(uses), [])
        shares = {use.name: kept_back(use, originals[use.name]) for use in uses}
        left = hand_out(shares, wants, first, total - sum(shares.values()))
        rest = [use for use in uses if use not in first]
        there, weight = total - sum(shares[use.name] for use in first), sum(use.priority for use in rest)
        # the other classes divide by priority what is there for them, as far as each wants its part
        own = {use.name: min(there * use.priority / weight, wants[use.name]) for use in rest}
        left = hand_out(shares, own, rest, left)
        left = hand_out(shares, wants, rest, left)
        return settle(shares, uses, left)
