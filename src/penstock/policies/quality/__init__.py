"""How good results are: source information content, fairness over queries, quality of data."""

from __future__ import annotations

from penstock.policies.quality.fairness import Spread, jain_index
from penstock.policies.quality.qod import qod_percent
from penstock.policies.quality.sic import (
    SLIDE_S,
    STW_S,
    BatchSic,
    SlidingSums,
    SourceTimeWindow,
    derive,
    duplicate,
    partition,
    query_sic,
    share_among_windows,
    source_tuple_sic,
)

__all__ = [
    "SLIDE_S",
    "STW_S",
    "BatchSic",
    "SlidingSums",
    "SourceTimeWindow",
    "Spread",
    "derive",
    "duplicate",
    "jain_index",
    "partition",
    "qod_percent",
    "query_sic",
    "share_among_windows",
    "source_tuple_sic",
]
