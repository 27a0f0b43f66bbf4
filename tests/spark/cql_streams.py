"""Random streams for queries of CQL on Spark."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from tests.cql.brute import US, Element
from tests.cql.cases import STREAMS

from penstock.cql.datafiles import INSTANT_COLUMN
from penstock.cql.engine.vector import arrow_type
from penstock.cql.plan import Plan
from penstock.cql.program import read_program
from penstock.cql.windowing import streams_read

COLUMNS = {
    stream.name: stream.columns for stream in read_program(STREAMS + "SELECT * FROM S").catalog.streams()
}
LAST, UNTIL = 25, 40
BASE = 8400
"""What is added to instants: Spark takes rows of 1970-01-01 00:00 for late. All slides divide it."""


def random_streams(seed: int, most: int = 30) -> dict[str, list[Element]]:
    drawn = random.Random(seed)

    def value(kind: str) -> Any:
        if drawn.random() < 0.1:
            return None
        if kind == "BIGINT":
            return drawn.choice([0, 1, 2, 3, 2**60 + 1])
        return (
            drawn.choice(["a", "ab", "b"]) if kind == "STRING" else drawn.choice([0.5, 1.0, 2.0, 39.0, 99.0])
        )

    def elements(kinds: Mapping[str, str]) -> list[Element]:
        at = sorted(drawn.randint(0, LAST) for _ in range(drawn.randint(most // 2, most)))
        return [(t, tuple(value(kind) for kind in kinds.values())) for t in at]

    return {name: elements(kinds) for name, kinds in COLUMNS.items()}


def tables(streams: Mapping[str, list[Element]], plan: Plan, base: int = BASE) -> dict[str, pa.Table]:
    made = {}
    for name in sorted(streams_read(plan)):
        columns = {INSTANT_COLUMN: pa.array([(at + base) * US for at, _ in streams[name]], pa.int64())}
        for i, (column, kind) in enumerate(COLUMNS[name].items()):
            columns[column] = pa.array([row[i] for _, row in streams[name]], arrow_type(kind))
        made[name] = pa.table(columns)
    return made
