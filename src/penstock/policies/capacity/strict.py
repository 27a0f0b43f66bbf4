"""Relative priority with a strict guarantee of quality (pham2016 6.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.policies.capacity.base import ClassUse
from penstock.policies.capacity.dilos import Dilos, Reserving

MOST_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Strict(Reserving):
    """A higher class loses nothing, or no larger part of its input than a lower class, whatever their loads.

    DILoS promises this only to a higher class that has no more load than the lower class. Here two adjacent
    classes are pooled if the higher one would keep a smaller part of its input: both then keep the same part.
    The pool may have to take in the next class, too. Only such neighbours are pooled, so no more capacity
    moves than the guarantee needs. The guarantee goes before the limits on what classes lend and borrow.
    """

    name: ClassVar[str] = "strict"

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        # A pooled class keeps no reserve, so there is more to divide in the next round. Shares were mostly at
        # rest after two rounds; of 20,000 random cases the slowest took 24.
        shares = self._once(uses)
        for _ in range(MOST_ROUNDS):
            before, shares = shares, self._once([replace(use, share=shares[use.name]) for use in uses])
            if all(math.isclose(shares[name], share, abs_tol=1e-9) for name, share in before.items()):
                break
        return shares

    def _once(self, uses: Sequence[ClassUse]) -> dict[str, float]:
        shares = dict(Dilos(self.reserve_fraction).redistribute(uses))

        def kept(use: ClassUse) -> float:
            return shares[use.name] / use.load

        loaded = [use for use in uses if use.load > 0]
        ordered = sorted(loaded, key=lambda use: (-use.priority, -kept(use), use.name))
        pools: list[_Pool] = []
        for use in ordered:
            pool = _Pool([use], shares[use.name], use.load)
            while pools and pools[-1].kept < min(1.0, pool.kept):
                pool = pools.pop().joined(pool)
            pools.append(pool)
        for pool in pools:
            if len(pool.uses) > 1:
                shares.update({use.name: pool.share * use.load / pool.load for use in pool.uses})
        return shares


@dataclass(frozen=True, slots=True)
class _Pool:
    """Classes that keep the same part of their input."""

    uses: list[ClassUse]
    share: float
    load: float

    @property
    def kept(self) -> float:
        return self.share / self.load

    def joined(self, lower: _Pool) -> _Pool:
        return _Pool([*self.uses, *lower.uses], self.share + lower.share, self.load + lower.load)
