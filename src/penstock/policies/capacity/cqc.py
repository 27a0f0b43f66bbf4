"""CQC: fixed class quotas by priority (pham2016 6.1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from penstock.policies.capacity.base import ClassUse, original_shares
from penstock.vocabulary.errors import require_positive


@dataclass(frozen=True, slots=True)
class Cqc:
    """Every class has its original share, L_Ck = P_k / sum P, whatever it needs.

    A class without work passes its turn on. Classes therefore share capacity implicitly: no report says how
    much, and a lightly loaded class runs many small batches.
    """

    name: ClassVar[str] = "cqc"

    def redistribute(self, uses: Sequence[ClassUse]) -> Mapping[str, float]:
        return original_shares(uses)


def quotas(shares: Mapping[str, float], round_s: float) -> dict[str, float]:
    """T_k by class: the time of the class in a round, T_k = share_k / sum of shares x round."""
    require_positive("round", round_s, "the time in which every class has one turn")
    total = sum(shares.values())
    return {name: round_s * share / total for name, share in shares.items()}
