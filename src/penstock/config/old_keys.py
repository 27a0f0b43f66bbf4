"""Old keys that only benches had a reason to set: `reserve_fraction`, `batches`, and `buckets` of `shed`.

They are accepted in this release, and go with the next release, and this file with them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo

_log = logging.getLogger(__name__)

OLD: dict[str, Any] = {"old": True}
"""Marks a field that is accepted for one more release. The pages do not name such a field."""

_CAPACITY = {
    "reserve_fraction": "leave it out; to keep more, set lendable_fraction of the class",
    "batches": "leave it out; to have batches earlier, set a shorter target",
}
_BUCKETS = "leave it out; key_buckets of the stream decides, and this key has no effect"


def say_old_capacity(raw: object, info: ValidationInfo) -> None:
    """Logs a line for each old key of `capacity`, with what to do instead.

    Args:
        raw: What the validator got.
        info: Of the validation.
    """
    for key, advice in _CAPACITY.items():
        if isinstance(raw, Mapping) and key in raw:
            _say(f"capacity.{key}", advice, info)


def without_buckets(shed: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
    """Returns `shed: {by: key}` without its old key `buckets`. If it has the key, a line is logged.

    Args:
        shed: The mapping as it was written.
        info: Of the validation.
    """
    if shed.get("by") != "key" or "buckets" not in shed:
        return shed
    _say("shed.buckets", _BUCKETS, info)
    return {key: value for key, value in shed.items() if key != "buckets"}


def _say(key: str, advice: str, info: ValidationInfo) -> None:
    context = info.context or {}
    if "old_keys" not in context:
        where = f"{context['where']}: " if "where" in context else ""
        _log.warning("%s%s is old: %s", where, key, advice)
