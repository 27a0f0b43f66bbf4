"""Random streams for queries of CQL on Spark."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from tests.cql.brute import US, Element
from tests.cql.cases import STREAMS

from penstock.cql.analysis.windowing import streams_read
from penstock.cql.datafiles import INSTANT_COLUMN, SIGN_COLUMN, SIGNS
from penstock.cql.engine.vector import arrow_type
from penstock.cql.meaning.catalog import RelationDef
from penstock.cql.meaning.plan import Plan
from penstock.cql.program import read_program

CATALOG = read_program(STREAMS + "SELECT * FROM S").catalog
COLUMNS = {stream.name: stream.columns for stream in CATALOG.streams()}
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

    def elements(name: str, kinds: Mapping[str, str]) -> list[Element]:
        at = sorted(drawn.randint(0, LAST) for _ in range(drawn.randint(most // 2, most)))
        signs = [[drawn.choice("++-")] if is_relation(name) else [] for _ in at]
        return [
            (t, (*sign, *(value(kind) for kind in kinds.values()))) for t, sign in zip(at, signs, strict=True)
        ]

    return {name: elements(name, kinds) for name, kinds in COLUMNS.items()}


def is_relation(name: str) -> bool:
    return isinstance(CATALOG.get(name), RelationDef)


def tables(streams: Mapping[str, list[Element]], plan: Plan, base: int = BASE) -> dict[str, pa.Table]:
    made = {}
    for name in sorted(streams_read(plan)):
        columns = {INSTANT_COLUMN: pa.array([(at + base) * US for at, _ in streams[name]], pa.int64())}
        rows = [row for _, row in streams[name]]
        if is_relation(name):
            columns[SIGN_COLUMN] = pa.array([SIGNS[row[0]] for row in rows], pa.int64())
            rows = [row[1:] for row in rows]
        for i, (column, kind) in enumerate(COLUMNS[name].items()):
            columns[column] = pa.array([row[i] for row in rows], arrow_type(kind))
        made[name] = pa.table(columns)
    return made
