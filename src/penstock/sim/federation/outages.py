"""Nodes and links that fail and return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.vocabulary.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Outage:
    """A node or a link that is down for a while.

    Attributes:
        from_s: When it fails.
        to_s: When it is back.
        node: The node that fails, or one end of the link.
        peer: The link's other end: a node, or "coordinators". `None` if the node itself fails; it then loses
            batches that it holds and batches that are sent to it.
    """

    from_s: float
    to_s: float
    node: int
    peer: int | str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.to_s:
            raise InvalidInputError(
                "an outage ends after it begins", f"{self.from_s} to {self.to_s} s", "give both in seconds"
            )
        if isinstance(self.peer, str) and self.peer != "coordinators":
            raise InvalidInputError(
                "a link ends at a node or at 'coordinators'", repr(self.peer), "a node's number, or None"
            )


class Outages:
    """All outages of a run."""

    def __init__(self, outages: Sequence[Outage], nodes: int) -> None:
        self._outages, self._nodes = tuple(outages), nodes
        for outage in outages:
            for end in (outage.node, outage.peer):
                if isinstance(end, int) and not 0 <= end < nodes:
                    raise InvalidInputError("an outage is of one of the nodes", end, f"0 to {nodes - 1}")

    def up(self, now_s: float) -> BoolArray:
        """Which nodes are up."""
        up = np.ones(self._nodes, np.bool_)
        for outage in self._at(now_s):
            if outage.peer is None:
                up[outage.node] = False
        return up

    def reach_coordinators(self, now_s: float) -> BoolArray:
        """Which nodes hear their coordinators, and are heard by them."""
        reach = self.up(now_s)
        for outage in self._at(now_s):
            if outage.peer == "coordinators":
                reach[outage.node] = False
        return reach

    def linked(self, now_s: float, sender: IntArray, receiver: IntArray) -> BoolArray:
        """Whether each sender's batch reaches its receiver."""
        linked = np.ones(sender.size, np.bool_)
        for outage in self._at(now_s):
            if isinstance(outage.peer, int):
                ends = {outage.node, outage.peer}
                linked &= ~(
                    np.isin(sender, list(ends)) & np.isin(receiver, list(ends)) & (sender != receiver)
                )
        return linked

    def _at(self, now_s: float) -> list[Outage]:
        return [outage for outage in self._outages if outage.from_s <= now_s < outage.to_s]
