"""Messages over Flight other than rows: requests as JSON, headers as Arrow, errors as rule, got and hint."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.streams.protocol import HeaderArrays
from penstock.vocabulary.errors import InvalidInputError, PenstockError

_FIELDS = ("first_position", "rows", "arrival_min_us", "arrival_max_us")
_KINDS: dict[str, type] = {"stream": str, "partition": int, "writer": str, "batch": int}
"""Types of a request's fields; a field that is not listed is an int or a bool."""


def encode(**fields: Any) -> bytes:
    """Encodes a request or an answer."""
    return json.dumps(fields).encode()


def decode(content: bytes, *needed: str) -> dict[str, Any]:
    """Decodes and checks a request; anything malformed from a stranger becomes a clear error."""
    try:
        fields = json.loads(content or b"{}")
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidInputError(
            "a request is a JSON object", repr(content[:60]), 'for example {"partition": 0}'
        )
    for name in needed:
        if name not in fields:
            raise InvalidInputError(f"the request names its {name}", sorted(fields), f"add {name!r}")
    for name, value in fields.items():
        kind = _KINDS.get(name, int)
        if not isinstance(value, kind) or (isinstance(value, int) and abs(value) >= 2**63):
            raise InvalidInputError(
                f"{name} is a {kind.__name__}", repr(value)[:60], "see streams/flight/wire.py"
            )
    return fields


def encode_headers(headers: HeaderArrays) -> bytes:
    """Header arrays as an Arrow stream of one batch."""
    columns = {name: pa.array(getattr(headers, name)) for name in _FIELDS}
    if headers.key_counts is not None:
        flat = np.ascontiguousarray(headers.key_counts).reshape(-1)
        columns["key_counts"] = pa.FixedSizeListArray.from_arrays(pa.array(flat), headers.key_counts.shape[1])
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode_headers(content: bytes) -> HeaderArrays:
    """Decodes the bytes of `encode_headers`."""
    batch = pa.ipc.open_stream(content).read_next_batch()
    counts = None
    if "key_counts" in batch.schema.names:
        lists = batch.column("key_counts")
        counts = lists.flatten().to_numpy().reshape(-1, lists.type.list_size)
    return HeaderArrays(**{name: batch.column(name).to_numpy() for name in _FIELDS}, key_counts=counts)


def encode_error(error: PenstockError) -> bytes:
    """Encodes an error so that the other side can raise the same error."""
    if isinstance(error, InvalidInputError):
        return encode(rule=error.rule, got=str(error.got), hint=error.hint)
    return encode(message=str(error))


def decode_error(content: bytes) -> PenstockError | None:
    """The error that the other side encoded; `None` if there is none."""
    try:
        fields = json.loads(content)
    except ValueError:
        return None
    if "rule" in fields:
        return InvalidInputError(fields["rule"], fields["got"], fields["hint"])
    return PenstockError(fields["message"])
