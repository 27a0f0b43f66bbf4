"""Decodes the shed plans in offsets and journals: the field `unit` says which kind of plan it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from penstock.grants.plans.chosen import ChosenPlan
from penstock.grants.plans.encoding import LISTS, PLACES
from penstock.grants.plans.key import KeyPlan
from penstock.grants.plans.protocol import ShedPlan
from penstock.grants.plans.sample import SamplePlan
from penstock.grants.plans.utility import UtilityPlan
from penstock.grants.plans.window import WindowPlan
from penstock.vocabulary.errors import InvalidInputError

KINDS: dict[str, type[Any]] = {kind.unit: kind for kind in (KeyPlan, ChosenPlan, UtilityPlan, WindowPlan)}


def plan_from_json(found: Mapping[str, Any]) -> ShedPlan:
    """The plan of any kind that an offset or a journal has as JSON."""
    unit = found.get("unit", "row")
    if unit in ("row", "segment"):
        return SamplePlan(**_known(SamplePlan, found, "unit"))
    if unit not in KINDS:
        raise _unknown(f"a plan's unit is {', '.join(['row', 'segment', *KINDS])}", repr(unit))
    kind = KINDS[unit]
    plan: ShedPlan = kind(**_known(kind, {name: value for name, value in found.items() if name != "unit"}))
    return plan


def _known(kind: type[Any], found: Mapping[str, Any], *further: str) -> dict[str, Any]:
    """The fields of a plan, converted from JSON to their types; unknown fields are refused."""
    names = [*further, *(f.name for f in fields(kind) if f.name not in further)]
    unknown = sorted(set(found) - set(names))
    if unknown:
        raise _unknown(f"a plan of this kind has {', '.join(names)}", f"unknown {', '.join(unknown)}")
    values = dict(found)
    if PLACES in values:
        values[PLACES] = {int(p): tuple(firsts) for p, firsts in values[PLACES].items()}
    if LISTS in values:
        values[LISTS] = tuple(values[LISTS])
    return values


def _unknown(rule: str, got: str) -> InvalidInputError:
    return InvalidInputError(rule, got, "a newer Penstock made it: use that one, or a new checkpointLocation")
