"""Encodes fields of a plan as JSON, for all kinds of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

PLACES, LISTS = "chosen", "windows"
"""Fields that are not plain values: segments by partition, and numbers of windows."""


def encoded(plan: Any, default: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Fields of a plan that differ from those of `default`, in the order of `names`.

    By default all fields but places and lists.
    """
    names = [f.name for f in fields(plan) if f.name not in (PLACES, LISTS)] if names is None else names
    return {name: getattr(plan, name) for name in names if getattr(plan, name) != getattr(default, name)}


def encoded_places(chosen: Mapping[int, tuple[int, ...]]) -> dict[str, Any]:
    """First positions of segments by partition, as a field; nothing if there are none."""
    return {PLACES: {str(p): list(firsts) for p, firsts in chosen.items()}} if chosen else {}
