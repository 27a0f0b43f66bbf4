"""Fields of a plan as JSON: what all kinds of plans share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

PLACES, LISTS = "chosen", "windows"
"""Fields that are no plain values: segments by partition, and numbers of windows."""


def encoded(plan: Any, default: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Fields of a plan that differ from those of another, in this order; without places and lists."""
    names = [f.name for f in fields(plan) if f.name not in (PLACES, LISTS)] if names is None else names
    return {name: getattr(plan, name) for name in names if getattr(plan, name) != getattr(default, name)}


def encoded_places(chosen: Mapping[int, tuple[int, ...]]) -> dict[str, Any]:
    """Where segments begin, by partition."""
    return {PLACES: {str(p): list(firsts) for p, firsts in chosen.items()}} if chosen else {}
