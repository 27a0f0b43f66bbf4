"""What a run directory consists of: names of files, format, columns of observations, and JSON.

JSON has no infinities and no NaN: they are written as the strings "Infinity", "-Infinity" and "NaN", which
`float()` reads back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import (
    Admission,
    BatchTiming,
    Decision,
    DelayStats,
    Expected,
    Observation,
    WaitingRows,
)

FORMAT = 5

CONFIG, OBSERVATIONS, DECISIONS, CHANGES, SIC, REPORT = (
    "config.json",
    "observations.arrows",
    "decisions.jsonl",
    "changes.jsonl",
    "sic.jsonl",
    "report.json",
)

_FLOATS = pa.list_(pa.field("item", pa.float64(), nullable=False))


def _required(*names: str, kind: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name in names]


OBSERVATION_SCHEMA = pa.schema(
    [
        *_required("id", kind=pa.int64()),
        *_required("cls", kind=pa.string()),
        *_required("now_s", "period_s", "delay_target_s", "keep_fraction", kind=pa.float64()),
        *_required("offered_rows", "admitted_rows", "shed_rows", "departed_rows", kind=pa.int64()),
        *_required("waiting_rows", kind=pa.int64()),
        *_required("offered_load", "queued_load_s", "network_load_s", kind=pa.float64()),
        pa.field("cost_per_row_s", pa.float64()),
        *_required("work_s", "busy_s", kind=pa.float64()),
        *_required(
            "delay",
            kind=pa.struct(
                [
                    *_required("count", kind=pa.int64()),
                    *[pa.field(f.name, pa.float64()) for f in fields(DelayStats) if f.name != "count"],
                ]
            ),
        ),
        *_required("output_delay_s", kind=_FLOATS),
        *_required("waiting", kind=pa.struct(_required("arrival_s", "rows", kind=_FLOATS))),
        pa.field("batch", pa.struct(_required(*(f.name for f in fields(BatchTiming)), kind=pa.float64()))),
        *_required("capacity_scale", kind=pa.float64()),
    ]
)
READABLE_SCHEMAS = [pa.schema(list(OBSERVATION_SCHEMA)[: len(OBSERVATION_SCHEMA) - n]) for n in range(3)]
"""Schemas of formats 3 (and later), 2 and 1; each format has a column more than the one before it."""


def dump_json(value: object, indent: int | None = None) -> str:
    """JSON text in ASCII; infinities and NaN as strings."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def encode_decision(decision: Decision) -> dict[str, Any]:
    """A decision as JSON values. Equal decisions have equal encodings, even if a field is NaN."""
    encoded: dict[str, Any] = _plain(asdict(decision))
    return encoded


def decode_decision(encoded: Mapping[str, Any]) -> Decision:
    """The inverse of `encode_decision`."""
    expected, grant = encoded["expected"], encoded["grant"]
    return Decision(
        observation_id=int(encoded["observation_id"]),
        keep_fraction=float(encoded["keep_fraction"]),
        reason=str(encoded["reason"]),
        expected=Expected(_optional(expected["delay_s"]), _optional(expected["admitted_rows"])),
        shed_load_s=float(encoded["shed_load_s"]),
        grant=None if grant is None else _decode_grant(grant),
        headroom=_optional(encoded["headroom"]),
    )


def _decode_grant(encoded: Mapping[str, Any]) -> Admission:
    return Admission(
        cut_s=float(encoded["cut_s"]),
        shed_before_s=float(encoded["shed_before_s"]),
        keep_fraction=float(encoded["keep_fraction"]),
        limit_rows=_optional(encoded["limit_rows"]),
    )


def to_row(observation: Observation) -> dict[str, object]:
    row = {f.name: getattr(observation, f.name) for f in fields(Observation)}
    row["delay"] = asdict(observation.delay)
    row["output_delay_s"] = observation.output_delay_s.tolist()
    waiting = observation.waiting
    row["waiting"] = {"arrival_s": waiting.arrival_s.tolist(), "rows": waiting.rows.tolist()}
    row["batch"] = None if observation.batch is None else asdict(observation.batch)
    return row


def from_row(row: dict[str, Any]) -> Observation:
    row["delay"] = DelayStats(**row["delay"])
    row["output_delay_s"] = np.array(row["output_delay_s"], np.float64)
    row["waiting"] = WaitingRows(**{k: np.array(v, np.float64) for k, v in row["waiting"].items()})
    if row.get("batch") is not None:
        row["batch"] = BatchTiming(**row["batch"])
    return Observation(**row)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float):
        return value
    raise InvalidInputError(
        "JSON in a run directory is made of mappings with string keys, lists, strings and numbers",
        f"{value!r} ({type(value).__name__})",
        "convert it first, for example a path with str()",
    )
