"""The learned costs of queries as JSON, for a control plane that replaces a dead one.

Costs hold for one driver's life: a new driver has a cold JVM, and other costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.control.measure.cost import CostModel
from penstock.control.state.query import QueryCost


def costs_to_json(costs: Mapping[str, QueryCost]) -> dict[str, Any]:
    """Returns the learned costs, by query, as JSON values."""
    return {
        key: {"cost": cost.model.snapshot(), "largest_rows": cost.largest_rows} for key, cost in costs.items()
    }


def costs_from_json(encoded: Mapping[str, Any]) -> dict[str, QueryCost]:
    """Returns the costs in JSON values of `costs_to_json`.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: The values are not from `costs_to_json`.
    """
    found = {}
    for key, one in encoded.items():
        model = CostModel()
        model.restore(one["cost"])
        found[key] = QueryCost(model, largest_rows=int(one["largest_rows"]))
    return found
