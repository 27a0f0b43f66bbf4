"""A small file beside the socket with the learned costs of queries.

If the control plane dies, the control plane that replaces it reads the file.
"""

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
    """Reads the costs that an earlier process wrote.

    If the file cannot be used, the result is empty: the control plane then learns all costs again.
    """
    if not path.exists():
        return {}
    try:
        return costs_from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        _log.warning("costs in %s cannot be used and are learned again: %s", path, error)
        return {}


def costs_text(costs: Mapping[str, QueryCost]) -> str:
    """Returns learned costs as the text of the file."""
    return json.dumps(costs_to_json(costs))


def write_costs(path: Path, text: str) -> None:
    """Writes a text of `costs_text` into the file. A crash leaves the old file or the new file."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    os.replace(draft, path)
