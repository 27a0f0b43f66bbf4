"""A small file beside the socket that keeps the costs of queries: a control plane that dies is replaced."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from penstock.control.measure.cost_store import costs_from_json, costs_to_json
from penstock.control.state.query import QueryCost

_log = logging.getLogger(__name__)


def read_costs(path: Path) -> dict[str, QueryCost]:
    """What an earlier process wrote; a file that cannot be used is as good as none, for costs are learned."""
    if not path.exists():
        return {}
    try:
        return costs_from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        _log.warning("costs in %s cannot be used and are learned again: %s", path, error)
        return {}


def costs_text(costs: Mapping[str, QueryCost]) -> str:
    """What was learned, as the file has it."""
    return json.dumps(costs_to_json(costs))


def write_costs(path: Path, text: str) -> None:
    """Writes what `costs_text` gave; a crash leaves the old file or the new one."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    os.replace(draft, path)
