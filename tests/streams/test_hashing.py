"""Buckets of keys: any process, by whatever way, must come to the same."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.streams.hashing import crc32_of, key_buckets


@given(st.lists(st.text(max_size=40), max_size=120), st.integers(0, 5))
def test_it_is_the_crc32_of_each_text_also_of_a_slice(texts: list[str], first: int) -> None:
    found = crc32_of(pa.array(texts, pa.string()).slice(first))
    assert found.tolist() == [zlib.crc32(text.encode()) for text in texts[first:]]


def test_one_long_text_among_many_short_ones_is_as_right() -> None:
    texts = [f"device-{i}" for i in range(1000)] + ["x" * 100_000]
    assert crc32_of(pa.array(texts)).tolist() == [zlib.crc32(text.encode()) for text in texts]


def test_buckets_are_those_of_the_texts_and_a_missing_key_is_an_empty_one() -> None:
    keys = pa.array([12, None, 12, 7])
    expected = [zlib.crc32(text.encode()) % 64 for text in ("12", "", "12", "7")]
    assert np.array_equal(key_buckets(keys, 64), expected)


@given(st.lists(st.text(max_size=30), max_size=40))
def test_short_and_long_keys_have_the_buckets_of_their_texts(texts: list[str]) -> None:
    expected = [zlib.crc32(text.encode()) % 64 for text in texts]
    assert key_buckets(pa.array(texts, pa.string()), 64).tolist() == expected
