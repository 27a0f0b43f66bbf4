"""What a control plane that replaces a dead one need not learn again: the costs of its queries.

Kept in a small file beside the socket, of one driver's life: a new driver has a cold JVM, and other costs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.control.measure.cost import CostModel
from penstock.control.state.members import Query

_log = logging.getLogger(__name__)

EVERY_S = 1.0


class CostMemory:
    """Writes costs down now and then, and hands them to the queries that join a later process.

    Args:
        path: The file; `None` remembers nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._written_s, self._batches = -EVERY_S, -1
        self._known: dict[str, Any] = {} if path is None else _read(path)

    def recall(self, query: Query) -> None:
        """Gives a query the costs it had under an earlier process."""
        known = self._known.get(query.key)
        if known is not None:
            query.cost.restore(known["cost"])
            query.largest_rows = known["largest_rows"]

    def forget(self, query: str) -> None:
        """A query is gone for good."""
        self._known.pop(query, None)

    def beat(self, queries: Mapping[str, Query], now_s: float) -> None:
        """Writes what was learned since the last time, not more than once a second."""
        batches = sum(query.batches for query in queries.values())
        if self._path is None or now_s - self._written_s < EVERY_S or batches == self._batches:
            return
        self._written_s, self._batches = now_s, batches
        for key, query in queries.items():
            if query.cost.ready:
                self._known[key] = {"cost": query.cost.snapshot(), "largest_rows": query.largest_rows}
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(self._known))
        os.replace(draft, self._path)


def _read(path: Path) -> dict[str, Any]:
    """What an earlier process wrote; a file that cannot be used is as good as none, for costs are learned."""
    if not path.exists():
        return {}
    try:
        known: dict[str, Any] = json.loads(path.read_text())
        for one in known.values():
            CostModel().restore(one["cost"])
            float(one["largest_rows"])
        return known
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        _log.warning("costs in %s cannot be used and are learned again: %s", path, error)
        return {}
