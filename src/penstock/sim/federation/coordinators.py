"""Query coordinators: add up result SIC, report it to all fragments (updateSIC), and notice lost nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.policies.quality.sic import BoolArray, IntArray, SlidingSums, SourceTimeWindow, query_sic
from penstock.sim.federation.layout import Layout
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True)
class Notice:
    """A coordinator has lost a node, or has it back."""

    now_s: float
    node: int
    lost: bool
    queries: tuple[int, ...]
    """Queries with a fragment on the node."""


class Coordinators:
    """The coordinators of all queries, one for each query; they do not depend on each other.

    Args:
        layout: The queries.
        stw_s: Source time window.
        slide_s: Slide of the source time window, and time between reports.
        timeout_s: A node that was silent for this long is lost. A node that heard nothing for this long takes
            its queries' SIC for unknown.
    """

    def __init__(self, layout: Layout, stw_s: float, slide_s: float, timeout_s: float = 1.0) -> None:
        self._layout, self._timeout_s = layout, timeout_s
        self._results = SlidingSums(layout.queries, stw_s, slide_s)
        self._offered = SlidingSums(layout.queries, stw_s, slide_s)
        self._source_query = layout.query[layout.source_fragment]
        self._sources = layout.sources_of_query
        self._heard_s = np.zeros(layout.nodes)
        self._lost = np.zeros(layout.nodes, np.bool_)
        self.reported = np.full((layout.nodes, layout.queries), np.nan)
        """Each node's knowledge of each query's SIC; NaN if it knows nothing."""
        self.notices: list[Notice] = []

    def offered(self, now_s: float, query: IntArray, sic: FloatArray) -> None:
        """Adds SIC of batches that sources sent."""
        self._offered.add(now_s, query, sic)

    def results(self, now_s: float, query: IntArray, sic: FloatArray) -> None:
        """Adds SIC of result batches that came in."""
        self._results.add(now_s, query, sic)

    def sic(self, now_s: float, windows: SourceTimeWindow) -> FloatArray:
        """Each query's SIC over the last source time window."""
        heard = np.bincount(
            self._source_query, weights=~windows.silent(now_s), minlength=self._layout.queries
        )
        return query_sic(self._results.sums(now_s), self._offered.sums(now_s), heard / self._sources)

    def report(self, now_s: float, sic: FloatArray, reach: BoolArray) -> None:
        """Reports the SIC of all queries to every node that can be reached; a node uses those it hosts."""
        self._notice(now_s, reach)
        self.reported[reach] = sic
        self.reported[now_s - self._heard_s > self._timeout_s] = np.nan

    def forget(self, nodes: BoolArray) -> None:
        """Forgets what failed nodes knew; they know nothing when they are back."""
        self.reported[nodes] = np.nan

    def _notice(self, now_s: float, reach: BoolArray) -> None:
        self._heard_s[reach] = now_s
        lost = now_s - self._heard_s > self._timeout_s
        for node in np.flatnonzero(lost != self._lost).tolist():
            hosted = np.unique(self._layout.query[self._layout.node == node])
            self.notices.append(Notice(now_s, node, bool(lost[node]), tuple(hosted.tolist())))
        self._lost = lost
