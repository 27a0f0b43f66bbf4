"""A grant: the rows that a reader may read next, as the control plane decides and sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.grants.offset import Positions, decode_positions, encode_positions
from penstock.grants.plans import KEEP_ALL, ShedPlan, plan_from_json


@dataclass(frozen=True, slots=True)
class Grant:
    """The rows that one reader of a query may read in its next micro-batch.

    Attributes:
        end: Positions at which the grant ends; it begins where the reader stands.
        late: Rows of the grant before these positions are shed as late.
        plan: Which of the other rows are kept.
        tick: A grant without rows, which lets Spark close windows.
        sources: Number of the query's readers; each reader has an equal part of the query's SIC.
        ungoverned: The source granted the rows to itself, because no control plane answered.
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
