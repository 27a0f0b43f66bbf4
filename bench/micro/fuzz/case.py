"""What one seed stands for: classes, streams, queries, and what is done to them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.policies.capacity import CAPACITY_POLICIES
from penstock.policies.load import LOAD_MANAGERS

FEATURES = (
    "crash",  # queries are lost at each point of a grant, and come back
    "orphan",  # grants are proposed and never logged, with a torn line in the journal
    "poison",  # batches fail again and again
    "replace",  # the control plane ends, and a new one begins
    "hush",  # the control plane is silent, and goes on
    "lose",  # a connection breaks
    "change",  # targets, priorities, managers and what is shed change
    "kill",  # the kill switch
    "drain",  # drains, and grants that are refused
    "clock",  # the wall clock steps
    "skew",  # the clocks of streams differ
    "backfill",  # lanes are backfilled, and their pins move
    "notices",  # last stages, dropped rows, windows
    "shared",  # a query reads what another writes
    "trim",  # rows that nobody needs are removed
    "quiet",  # streams fall silent: ticks
)


def random_of(seed: int, what: str) -> np.random.Generator:
    """Random numbers for one purpose: those of others do not depend on whether it is there."""
    return np.random.default_rng([seed, zlib.crc32(what.encode())])


@dataclass(frozen=True)
class StreamCase:
    """A stream that is fed; `rate_per_s` rows a second in segments of at most `segment_rows`."""

    name: str
    partitions: int
    key: bool
    segment_rows: int
    rate_per_s: float
    skew_s: float


@dataclass(frozen=True)
class QueryCase:
    """A query; `behind` names the query whose shared stream it reads, too."""

    name: str
    cls: str
    streams: tuple[str, ...]
    fixed_s: float
    row_s: float
    noise: float
    jobs: int
    tasks: int
    available_now: bool
    starts_s: float = 0.0
    behind: str | None = None


@dataclass(frozen=True)
class Case:
    """All of it; the same case does the same."""

    seed: int
    seconds: float
    features: frozenset[str]
    classes: dict[str, dict[str, Any]]
    streams: tuple[StreamCase, ...]
    queries: tuple[QueryCase, ...]
    flow: dict[str, Any] = field(default_factory=dict)

    def has(self, feature: str) -> bool:
        return feature in self.features

    def described(self) -> str:
        """For people: enough to see what is special."""
        lines = [
            f"seed {self.seed}, {self.seconds:g} s, features {', '.join(sorted(self.features)) or 'none'}"
        ]
        lines += [f"flow {self.flow}"]
        lines += [f"class {name}: {config}" for name, config in self.classes.items()]
        lines += [str(each) for each in (*self.streams, *self.queries)]
        return "\n".join(lines)


def draw(seed: int, seconds: float = 20.0) -> Case:
    """The case of a seed."""
    random = random_of(seed, "case")
    features = frozenset(name for name in FEATURES if random.random() < 0.6)
    streams = tuple(_stream(random, i, "skew" in features) for i in range(random.integers(1, 4)))
    names = ["gold", "silver", "bulk"][: random.integers(1, 4)]
    queries = [_query(random, i, names, streams) for i in range(random.integers(1, 5))]
    if "shared" in features and len(queries) > 1:
        queries[-1] = _behind(queries[-1], queries[0])
    queries = _loaded(queries, streams, float(random.choice([0.7, 2.0, 5.0])))
    classes = {}
    for i, name in enumerate(names):
        by_key = all_keyed(name, streams, queries)
        classes[name] = class_of(random, by_key) | {"priority": float([6, 3, 1][i])}
        classes[name] |= {"shed_lane": bool(random.random() < 0.6)}
        if "poison" in features:
            classes[name]["poison_after"] = int(random.integers(1, 3))
    flow = {
        "slots": int(random.integers(1, 3)),
        "capacity": {
            "policy": str(random.choice(list(CAPACITY_POLICIES))),
        },
        "eager": bool(random.choice([False, True])),
        "trim": "trim" in features,
        "seed": seed % 2**31,
        "fail_open_after": float(random.choice([0.5, 2.0])),
        "stw": 5.0,
        "dry_run": bool(random.random() < 0.05),
    }
    return Case(seed, seconds, features, classes, streams, tuple(queries), flow)


def all_keyed(cls: str, streams: Sequence[StreamCase], queries: Sequence[QueryCase]) -> bool:
    """Whether all that a class reads has a key; shared streams have none."""
    keyed = {stream.name for stream in streams if stream.key}
    return all(set(q.streams) <= keyed and q.behind is None for q in queries if q.cls == cls)


def _stream(random: np.random.Generator, number: int, skewed: bool) -> StreamCase:
    return StreamCase(
        name=f"s{number}",
        partitions=int(random.integers(1, 4)),
        key=bool(random.random() < 0.75),
        segment_rows=int(random.choice([20, 60, 300])),
        rate_per_s=float(random.choice([400, 1000, 3000])),
        skew_s=float(random.choice([-0.4, 0.0, 0.3, 1.5])) if skewed else 0.0,
    )


def _query(
    random: np.random.Generator, number: int, classes: list[str], streams: tuple[StreamCase, ...]
) -> QueryCase:
    several = random.random() < 0.5 and len(streams) > 1
    read = random.choice([s.name for s in streams], 2 if several else 1, replace=False)
    return QueryCase(
        name=f"q{number}",
        cls=str(random.choice(classes)),
        streams=tuple(str(name) for name in read),
        fixed_s=float(random.choice([0.01, 0.05])),
        row_s=float(random.choice([1.0, 3.0])),
        noise=float(random.choice([0.0, 0.3])),
        jobs=int(random.integers(0, 3)),
        tasks=int(random.integers(1, 4)),
        available_now=bool(number > 0 and random.random() < 0.15),
        starts_s=float(random.choice([0.0, 0.0, 3.0, 8.0])) if number else 0.0,
    )


def _loaded(queries: list[QueryCase], streams: tuple[StreamCase, ...], times: float) -> list[QueryCase]:
    """Rows that cost as much as makes the load so many times what one slot can do."""
    rates = {stream.name: stream.rate_per_s for stream in streams}
    load = sum(q.row_s * rates[name] for q in queries for name in q.streams)
    return [replace(q, row_s=q.row_s * times / max(load, 1e-9)) for q in queries]


def _behind(last: QueryCase, writer: QueryCase) -> QueryCase:
    """A query of the writer's class that reads what the writer writes, and nothing else."""
    return replace(last, cls=writer.cls, streams=(), behind=writer.name, available_now=False)


CHOICES: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"by": "balance-sic"},
    {"by": "random"},
    {"by": "oldest", "within": "class"},
    {"by": "utility", "utility": "v"},
    {"by": "range", "key": "v", "shed_to": 0.5},
    {"by": "window", "size": "250ms"},
    {"by": "key", "within": "class"},
)
"""How a class chooses over all its queries, or that it does not. The last one needs streams with keys."""


def class_of(random: np.random.Generator, by_key: bool) -> dict[str, Any]:
    """Settings of a class that may also be changed while it runs."""
    chosen = CHOICES[random.integers(len(CHOICES) - (not by_key))]
    units = ["sample", "row", "segment", "key", "key"] if by_key else ["sample", "row", "segment"]
    target = float(random.choice([0.6, 1.5, 3.0]))
    manager = str(random.choice(list(LOAD_MANAGERS)))
    unit = str(random.choice(units))
    return {
        "target": target,
        "manager": manager,
        "shed": {"by": unit} if chosen is None else {**chosen, "otherwise": unit},
        "min_keep_fraction": float(random.choice([0.0, 0.0, 0.2])),
        "dry_run": bool(random.random() < 0.05),
    }
