"""A grant: what a reader may read next, from the control plane's decision to the offset that carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.grants.offset import Positions, decode_positions, encode_positions
from penstock.grants.plans import KEEP_ALL, ShedPlan, plan_from_json


@dataclass(frozen=True, slots=True)
class Grant:
    """What one reader of a query may read in its next micro-batch.

    Attributes:
        end: Positions at which the grant ends; it begins where the reader stands.
        late: Rows of the grant before these positions are shed as late.
        plan: What is kept of the rest.
        tick: A grant without rows, which lets Spark close windows.
        sources: Readers of the query; each has its part of the query's SIC.
        ungoverned: The source gave it to itself, because nobody answered.
    """

    end: Positions
    late: Positions = field(default_factory=dict)
    plan: ShedPlan = KEEP_ALL
    tick: bool = False
    sources: int = 1
    ungoverned: bool = False

    def to_json(self) -> dict[str, Any]:
        """The grant as the control plane sends it."""
        return {
            "end": encode_positions(self.end),
            "late": encode_positions(self.late),
            "plan": self.plan.to_json(),
            "tick": self.tick,
            "sources": self.sources,
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Grant:
        """The grant as a source gets it."""
        return cls(
            decode_positions(encoded["end"]),
            decode_positions(encoded["late"]),
            plan_from_json(encoded["plan"]),
            bool(encoded.get("tick", False)),
            int(encoded.get("sources", 1)),
        )
