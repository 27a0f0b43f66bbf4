"""What a control plane that replaces a dead one need not learn again: the costs of queries, as JSON.

They are of one driver's life: a new driver has a cold JVM, and other costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.control.measure.cost import CostModel
from penstock.control.state.query import QueryCost


def costs_to_json(costs: Mapping[str, QueryCost]) -> dict[str, Any]:
    """By query, what was learned."""
    return {
        key: {"cost": cost.model.snapshot(), "largest_rows": cost.largest_rows} for key, cost in costs.items()
    }


def costs_from_json(encoded: Mapping[str, Any]) -> dict[str, QueryCost]:
    """What `costs_to_json` wrote.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: It is something else.
    """
    found = {}
    for key, one in encoded.items():
        model = CostModel()
        model.restore(one["cost"])
        found[key] = QueryCost(model, largest_rows=int(one["largest_rows"]))
    return found
