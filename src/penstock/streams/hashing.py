"""Buckets of keys, by CRC-32. Many texts are hashed at once: each step takes one byte of every text."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FEW = 32
"""Switch to hashing one by one when at most this many texts still have bytes left."""

_SHORT_KEY = 12
"""Mean bytes of a key up to which hashing every key takes no longer than finding the distinct keys first."""


def _table() -> npt.NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, np.uint32(0xEDB88320) ^ (values >> 1), values >> 1)
    return values.astype(np.uint32)


_TABLE = _table()
_ALL = np.uint32(0xFFFFFFFF)


def crc32_of(texts: pa.StringArray) -> npt.NDArray[np.uint32]:
    """`zlib.crc32` of each text's UTF-8 bytes; there must be no null."""
    if not len(texts):
        return np.empty(0, np.uint32)
    _, ends, content = texts.buffers()
    offsets = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    first, lengths = offsets[:-1][order], lengths[order]
    crc = np.full(len(texts), _ALL, np.uint32)
    step, left = 0, int((lengths > 0).sum())
    while left > _FEW:
        bytes_ = data[first[:left] + step]
        crc[:left] = _TABLE[(crc[:left] ^ bytes_) & 0xFF] ^ (crc[:left] >> 8)
        step += 1
        left = int(np.searchsorted(-lengths, -step))
    crc ^= _ALL
    for i in range(left):
        rest = data[first[i] + step : first[i] + lengths[i]].tobytes()
        crc[i] = zlib.crc32(rest, int(crc[i]))
    hashes = np.empty_like(crc)
    hashes[order] = crc
    return hashes


def key_buckets(values: pa.Array, buckets: int) -> np.ndarray:
    """Bucket of each key, by the hash of its text, so that all processes agree."""
    texts = values.cast(pa.string()).fill_null("")
    if (pc.sum(pc.binary_length(texts)).as_py() or 0) <= _SHORT_KEY * len(texts):
        return crc32_of(texts).astype(np.int64) % buckets
    encoded = pc.dictionary_encode(texts)
    hashes = crc32_of(encoded.dictionary).astype(np.int64)
    found: np.ndarray = (hashes % buckets)[encoded.indices.to_numpy(zero_copy_only=False)]
    return found
