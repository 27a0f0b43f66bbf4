"""`spark/fairness`: thirty queries of one class lose alike, by BALANCE-SIC and at random."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.bench import BenchRun, bench
from penstock.cql.program import read_program
from penstock.policies.quality.fairness import Spread
from penstock.spark.cql.feeds import Feed
from penstock.spark.cql.windows import windows_of
from penstock.spark.driver.starting import start_in_turn
from penstock.streams.paced.stream import create_paced
from penstock.streams.producing.schedule import Schedule, schedule_from_counts
from penstock.streams.protocol import ORIGIN, POSITION
from penstock.vocabulary.errors import PenstockError

from .rig import Rig
from .twelve import to_nowhere

WINDOW = "[RANGE 1 SEC SLIDE 1 SEC]"
REGISTER = "REGISTER STREAM a (id int, v float); REGISTER STREAM b (id int, v float); "
KINDS = {
    "avg_all": f"SELECT avg(a.v) AS mean FROM a {WINDOW}",
    "top5": f"SELECT top5(a.id, a.v) AS top FROM a {WINDOW}, b {WINDOW} WHERE a.id = b.id AND b.v >= 90.0",
    "cov": f"SELECT cov(a.v, b.v) AS c FROM a {WINDOW}, b {WINDOW} WHERE a.id = b.id AND b.v >= 90.0",
}
"""The complex workload of kalyvianaki2016 table 1."""
EACH = 10
"""Queries of each kind."""
BASE_STREAMS = 10
RATES = np.linspace(1.0, 4.0, BASE_STREAMS)
"""Of the streams, relative to each other."""
POOL_ROWS, SEGMENT_ROWS = 16_384, 512
IDS = 4000
TARGET_S, STW_S = 60.0, 120.0
"""A window of several turns: with one of 60 s, three, Jain's index says more of turns than of queries."""
OVERLOADS = (2.0, 5.0)
SHEDDERS = ("balance-sic", "random")
WARMING_S, PROBE_S = 300.0, 60.0
"""Seconds of a flood before the capacity is measured, for its code to become fast; those in which it is."""
SETTLING, WINDOWS = 1.5, 2
"""Source time windows of each case before it is looked at, and those that are."""
READY_S = 300.0
QUIET_PER_S, QUIET_S = 100.0, 90.0
"""Unit rate at first, while costs are learned."""
FLOOD_PER_S = 2000.0
"""A unit rate that no machine of this size can take."""
HEAP = "6g"


def pool(seed: int) -> pa.RecordBatch:
    drawn = np.random.default_rng(seed)
    times = pa.array(np.zeros(POOL_ROWS, np.int64), pa.timestamp("us", tz="UTC"))
    ids, values = drawn.integers(0, IDS, POOL_ROWS), drawn.random(POOL_ROWS) * 100
    return pa.record_batch({"ts": times, "id": ids, "v": values})


def result_of(kind: str, left: DataFrame, right: DataFrame | None) -> DataFrame:
    (written,) = read_program(REGISTER + KINDS[kind]).queries
    sides = {"a": left, "b": right}

    def feed(name: str) -> Feed:
        rows = sides[name]
        assert rows is not None
        return Feed(rows, ("id", "v"), "ts", POSITION, lateness_ms=1001)

    return windows_of(written.query, feed)


@dataclass(frozen=True, slots=True)
class Place:
    """A query: its kind, and the streams that it reads."""

    name: str
    kind: str
    streams: tuple[str, ...]


def places() -> list[Place]:
    """Ten of each kind; ten of all read the shared stream, the others streams of unequal rates."""
    found = []
    for kind in KINDS:
        for i in range(EACH):
            behind = i % (5 if kind == "avg_all" else 3) == 0
            first = "shared" if behind else f"s{i}"
            second = () if kind == "avg_all" else (f"s{(i + 3) % BASE_STREAMS}",)
            found.append(Place(f"{kind}_{i}", kind, (first, *second)))
    return found


@bench("fairness", title="thirty queries of one class, ten behind a shared stream, at 2x and 5x overload")
def fairness(run: BenchRun) -> None:
    overloads = OVERLOADS[:1] if run.quick else OVERLOADS
    run.progress("learning what the queries cost", total=len(overloads) * len(SHEDDERS))
    with Rig(memory=HEAP) as rig:
        rig.spark.conf.set("spark.sql.shuffle.partitions", "1")
        rig.warm_up(10.0)
        capacity = _learn(rig, run)
        for overload in overloads:
            found = _run(rig, run, capacity, overload)
            capacity = found[SHEDDERS[0]].capacity  # code becomes faster still
            for shedder, seen in found.items():
                name = f"{shedder.partition('-')[0]}_{overload:g}x"
                run.row(f"jain_{name}", seen.jain)
                run.row(f"mean_sic_{name}", seen.mean)
                run.row(f"offered_to_admitted_{name}", seen.overload)
            balance, random = (found[name].jain for name in SHEDDERS)
            run.row(f"jain_{overload:g}x", balance)
            run.row(f"jain_over_random_{overload:g}x", balance - random)


# -- the queries ------------------------------------------------------------------------------------


class Thirty:
    """The queries, the one that writes the shared stream, and their streams, in one class.

    Args:
        rig: The session.
        unit_per_s: Rows a second of a stream of relative rate 1, after a quiet stretch.
        seconds: How long rows come.
        shed: What the class sheds.
    """

    def __init__(self, rig: Rig, unit_per_s: float, seconds: float, shed: str) -> None:
        self._rig, root = rig, rig.new("log")
        self._logs = {
            name: create_paced(
                root / name,
                [pool(i)],
                _schedule(rate, unit_per_s, seconds),
                event_time="ts",
            )
            for i, (name, rate) in enumerate(rates().items())
        }
        classes = {"all": {"target": TARGET_S, "shed": shed}}
        self.flow = penstock.attach(rig.spark, {"log": root, "classes": classes, "stw": STW_S})
        self.queries: list[StreamingQuery] = []

    def __enter__(self) -> Thirty:
        self._share()
        for place in places():
            self._start(place)
        for log in self._logs.values():
            log.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.flow.stop()

    def _share(self) -> None:
        rows = self.flow.read_stream("raw", "all", ORIGIN, WRITER)
        passed = rows.where("v >= 20")
        writer = passed.writeStream.foreachBatch(self.flow.share("shared", passed)).queryName(WRITER)
        self.queries.append(
            start_in_turn(writer.option("checkpointLocation", str(self._rig.new("cp"))).start)
        )

    def _start(self, place: Place) -> None:
        readers = self.flow.query(place.name, "all")
        rows = [readers.read_stream(stream, [POSITION]) for stream in place.streams]
        result = result_of(place.kind, rows[0], rows[1] if len(rows) > 1 else None)
        self.queries.append(to_nowhere(result, str(self._rig.new("cp")), place.name))

    def status(self) -> dict[str, dict[str, Any]]:
        """By query."""
        for query in self.queries:
            if (error := query.exception()) is not None:
                raise PenstockError(f"query {query.name} runs; got: {error}")
        return {q["name"]: q for q in self.flow.status().to_json()["classes"]["all"]["queries"].values()}

    def window(self) -> tuple[dict[str, float], int]:
        """After one more window, the SIC of every query, and the fewest batches that one had in it."""
        before = self.status()
        time.sleep(STW_S)
        found = {name: query for name, query in self.status().items() if name != WRITER}
        turns = {name: query["batches"] - before[name]["batches"] for name, query in found.items()}
        starved = sorted(name for name in turns if not turns[name] or found[name]["sic"] is None)
        if starved or len(found) != len(places()):
            raise PenstockError(
                f"each of {len(places())} queries has a batch in a window; got: none of {starved}"
            )
        return {name: query["sic"] for name, query in found.items()}, min(turns.values())

    def books(self) -> NDArray[np.int64]:
        """Rows offered and admitted, of all queries."""
        cls = self.flow.status().to_json()["classes"]["all"]
        return np.array([cls["offered"], cls["admitted"]], np.int64)

    def await_costs(self) -> dict[str, dict[str, Any]]:
        """Until the cost of every query is known, and the quiet stretch is over."""
        deadline_s = time.monotonic() + READY_S
        time.sleep(QUIET_S)
        while True:
            found = self.status()
            unknown = [name for name, query in found.items() if query["row_s"] is None]
            if not unknown and len(found) == len(self.queries):
                return found
            if time.monotonic() > deadline_s:
                raise PenstockError(
                    f"all costs are known in {READY_S:g} s; got: none of {', '.join(unknown)}"
                )
            time.sleep(1.0)


def _schedule(rate: float, unit_per_s: float, seconds: float) -> Schedule:
    counts = [
        np.full(round(long_s / BIN_S), rate * per_s * BIN_S)
        for long_s, per_s in ((QUIET_S, QUIET_PER_S), (seconds - QUIET_S, unit_per_s))
    ]
    return schedule_from_counts(np.concatenate(counts), BIN_S, 1.0, SEGMENT_ROWS)


BIN_S = 0.1
WRITER = "segment"


def rates() -> dict[str, float]:
    """By stream, relative to each other."""
    return {"raw": 2.0, **{f"s{i}": rate for i, rate in enumerate(RATES.tolist())}}


def offered() -> dict[str, float]:
    """By query, its rows a second, relative to each other; four fifths of the raw ones pass the writer."""
    by_stream = {**rates(), "shared": 0.8 * rates()["raw"]}
    found = {place.name: sum(by_stream[stream] for stream in place.streams) for place in places()}
    return {WRITER: rates()["raw"], **found}


# -- the runs ---------------------------------------------------------------------------------------


def _learn(rig: Rig, run: BenchRun) -> float:
    """The unit rate that the queries can take: what they admit a second of a flood."""
    with Thirty(rig, FLOOD_PER_S, READY_S + WARMING_S + 2 * PROBE_S, "random") as thirty:
        known = thirty.await_costs()
        fixed_s = sum(query["fixed_s"] for query in known.values())
        time.sleep(WARMING_S)
        before, from_s = thirty.books(), time.monotonic()
        time.sleep(PROBE_S)
        _, per_s = (thirty.books() - before) / (time.monotonic() - from_s)
    seen = f"{len(known)} queries: {fixed_s:.1f} s of fixed costs a cycle; they take {per_s:,.0f} rows/s"
    run.note(seen)
    run.progress(seen)
    return per_s / sum(offered().values())


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one shedder at one overload."""

    spreads: list[Spread]
    overload: float
    """Rows that were offered for each that was admitted."""
    capacity: float
    """The unit rate of what was admitted."""

    @property
    def jain(self) -> float:
        return float(np.mean([spread.jain for spread in self.spreads]))

    @property
    def mean(self) -> float:
        return float(np.mean([spread.mean for spread in self.spreads]))


def _run(rig: Rig, run: BenchRun, capacity: float, overload: float) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    seconds = READY_S + len(SHEDDERS) * (SETTLING + WINDOWS) * STW_S + 60.0
    with Thirty(rig, overload * capacity, seconds, SHEDDERS[0]) as thirty:
        thirty.await_costs()
        for shedder in SHEDDERS:
            run.progress(f"{shedder} at {overload:g} times the capacity", advance=1)
            thirty.flow.change("all", shed=shedder)
            time.sleep(SETTLING * STW_S)
            thirty.flow.mark()
            before, from_s = thirty.books(), time.monotonic()
            spreads = []
            for _ in range(WINDOWS):
                sics, turns = thirty.window()
                spreads.append(Spread.of(np.array(list(sics.values()))))
                cls = thirty.flow.status().to_json()["classes"]["all"]
                seen = (
                    f"{shedder} {overload:g}x: Jain {spreads[-1].jain:.3f}, SIC {spreads[-1].mean:.3f} "
                    f"({_extremes(sics)}), {turns} turns at least, "
                    f"p95 {cls['delay_since_mark']['p95_s'] or 0:.1f} s"
                )
                run.note(seen)
                run.progress(seen)
                thirty.flow.mark()
            offered_rows, admitted_rows = thirty.books() - before
            per_s = admitted_rows / (time.monotonic() - from_s)
            unit_per_s = float(per_s) / sum(offered().values())
            found[shedder] = Seen(spreads, float(offered_rows / admitted_rows), unit_per_s)
    return found


def _extremes(sics: dict[str, float]) -> str:
    lowest, highest = min(sics, key=sics.__getitem__), max(sics, key=sics.__getitem__)
    return f"{sics[lowest]:.3f} {lowest} to {sics[highest]:.3f} {highest}"
