"""Old keys of a class, mapped onto `shed`: `sampling`, `shedder`, `shedder_settings`, `settings.victims`.

They go with the next release, and this file with them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError, ValidationInfo

from penstock.config.mistakes import refused, unknown_name
from penstock.config.shed_settings import ShedSettings, as_written
from penstock.config.shedding import AnyShed
from penstock.grants.plans.sampling import SAMPLINGS
from penstock.policies.shedding import SHEDDERS

_log = logging.getLogger(__name__)

SILENT = {"old_keys": "silent"}
"""Context of a validation that says nothing about old keys: a program wrote them, nobody can change them."""

_OLD_KEYS = ("sampling", "shedder", "shedder_settings")
_SETTINGS = ("settings", "manager_settings")
"""The load manager's, by alias and by name."""
_VICTIMS = ("uniform", "oldest")
_SEMANTIC = ("utility", "range")


def old_keys(raw: Mapping[str, Any], manager: str = "deadline") -> tuple[str, ...]:
    """The old keys that a class, or a change of a class, has.

    Args:
        raw: Keys and values as they were written.
        manager: The load manager of the class where `raw` names none: `victims` was a setting of Deadline.
    """
    found = [key for key in _OLD_KEYS if key in raw]
    given = [raw[key] for key in _SETTINGS if isinstance(raw.get(key), Mapping)]
    if raw.get("manager", manager) == "deadline" and any("victims" in settings for settings in given):
        found.append("settings.victims")
    return tuple(found)


def with_shed(
    raw: Mapping[str, Any], present: ShedSettings | None = None, manager: str = "deadline"
) -> dict[str, Any]:
    """The keys of a class, or of a change of a class, with `shed` in the place of the old keys.

    Args:
        raw: Keys and values as they were written.
        present: What the class sheds before a change. What the change leaves out stays.
        manager: The load manager of the class before a change.
    """
    old = old_keys(raw, manager)
    if not old:
        return dict(raw)
    if "shed" in raw:
        names = " and ".join(old)
        raise refused(
            "must be the only key that says what is shed",
            f"shed beside {names}",
            f"leave out {names}, which {'are' if old[1:] else 'is'} old",
            "shed",
        )
    said = {} if present is None else _in_old_words(present)
    new = {key: value for key, value in raw.items() if key not in _OLD_KEYS}
    for key in _SETTINGS:
        if "settings.victims" in old and "victims" in new.get(key, ()):
            said["victims"] = new[key]["victims"]
            new[key] = {name: value for name, value in new[key].items() if name != "victims"}
    if raw.get("shedder", said.get("shedder")) != said.get("shedder"):
        said["shedder_settings"] = {}  # they were another shedder's
    said |= {key: raw[key] for key in _OLD_KEYS if key in raw}
    return {**new, "shed": _in_new_words(**said)}


def renewed(raw: object, info: ValidationInfo, whose: str) -> object:
    """A class with `shed` in the place of old keys; one line says what to write instead.

    Args:
        raw: What a validator got.
        info: Of the validation.
        whose: What the line says before the first key: `classes.gold.`.
    """
    if not isinstance(raw, Mapping) or not (old := old_keys(raw)):
        return raw
    new, context = with_shed(raw), info.context or {}
    if "old_keys" not in context:
        say_old(old, f"{context['where']}: {whose}" if "where" in context else whose, new["shed"])
    return new


def renewed_classes(raw: object, info: ValidationInfo) -> object:
    """All classes of a flow, each as `renewed` gives it."""
    if not isinstance(raw, Mapping):
        return raw
    classes = dict(raw)
    for name, cls in raw.items():
        try:
            classes[name] = renewed(cls, info, f"classes.{name}.")
        except ValidationError:
            continue  # the class's own validator says the same, and pydantic adds at which key
    return classes


def say_old(old: tuple[str, ...], whose: str, shed: Mapping[str, Any] | ShedSettings) -> None:
    """Says what to write instead of old keys.

    Args:
        old: The keys.
        whose: What stands before the first of them.
        shed: The new value.
    """
    try:
        text = as_written(shed) if isinstance(shed, Mapping) else str(shed)
    except yaml.YAMLError:  # of Python's values some have no form in YAML
        text = repr(shed)
    _log.warning("%s%s %s old: write shed: %s", whose, " and ".join(old), "are" if old[1:] else "is", text)


def both_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two changes of a class, one after the other, as one change; one key at most says what is shed."""
    if "shed" in second:
        first = with_shed(first)
    elif "shed" in first:
        second = with_shed(second, TypeAdapter(AnyShed).validate_python(first["shed"]))
    return {**first, **second}


def _in_old_words(shed: ShedSettings) -> dict[str, Any]:
    """What a class sheds, as the old keys and `victims` say it."""
    settings = shed.model_dump(by_alias=True, exclude_none=True, exclude={"otherwise", "within"})
    if shed.shedder != "semantic":
        del settings["by"]
    return {
        "sampling": shed.sampling,
        "shedder": shed.shedder,
        "shedder_settings": {} if shed.shedder is None else settings,
        "victims": shed.victims,
    }


def _in_new_words(
    sampling: Any = "auto", shedder: Any = None, shedder_settings: Any = None, victims: Any = "uniform"
) -> dict[str, Any]:
    """`shed` from the values of the old keys. What the new key would misunderstand is refused here."""
    if sampling not in SAMPLINGS:
        raise unknown_name(str(sampling), SAMPLINGS, "sampling")
    if victims not in _VICTIMS:
        raise unknown_name(str(victims), _VICTIMS, "settings", "victims")
    settings = {} if shedder_settings is None else shedder_settings
    if not isinstance(settings, Mapping):
        raise refused(
            "must be a mapping of keys to values", repr(settings)[:60], "write shed", "shedder_settings"
        )
    of_query = "oldest" if victims == "oldest" else "sample" if sampling == "auto" else sampling
    if shedder is None:
        if settings:
            raise refused("is a key beside shedder alone", settings, "write shed", "shedder_settings")
        return {"by": of_query}
    given = {key: value for key, value in settings.items() if value is not None}
    kind = _kind_of(shedder, given.pop("by", None))
    if shedder == "cohort":
        given.pop("buckets", None)  # see `old_keys`
    return {**kind, **given, **({} if of_query == "sample" else {"otherwise": of_query})}


def _kind_of(shedder: object, by: object) -> dict[str, str]:
    """The kind of shedding that a shedder is; `by` is a setting of `semantic` alone."""
    if not isinstance(shedder, str) or shedder not in SHEDDERS:
        raise unknown_name(str(shedder), SHEDDERS, "shedder")
    if shedder == "semantic":
        if by is not None and by not in _SEMANTIC:
            raise unknown_name(str(by), _SEMANTIC, "shedder_settings", "by")
        return {"by": str(by or "utility")}
    if by is not None:
        raise refused(f"is no setting of {shedder}", repr(by), "leave it out", "shedder_settings", "by")
    if shedder in ("cohort", "oldest"):
        return {"by": "key" if shedder == "cohort" else "oldest", "within": "class"}
    return {"by": shedder}
