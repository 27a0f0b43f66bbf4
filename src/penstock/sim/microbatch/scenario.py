"""A scenario of the micro-batch plant: classes, streams with their load, queries with their costs.

plant: microbatch
classes:
  gold: {target: 2s, priority: 6}
  bulk: {target: 10s}
streams:
  readings: {load: {kind: constant, rate_per_s: 30000}}
queries:
  alerts: {class: gold, streams: readings}
  totals: {class: bulk, streams: readings, row: 40us}
overload: 1.5
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from penstock.config.flow import CapacityConfig, ClassConfig, put
from penstock.config.mistakes import (
    Part,
    Seconds,
    SecondsOrZero,
    checked,
    placing,
    read_mapping,
    refused,
    unknown_name,
)
from penstock.config.places import Name
from penstock.policies.quality.sic import STW_S
from penstock.sim.microbatch.loads import AnyLoad, ConstantLoad
from penstock.sim.microbatch.machine import Machine, steady
from penstock.vocabulary.errors import InvalidInputError


class StreamSpec(Part):
    """A stream: what arrives in it."""

    load: AnyLoad = Field(ConstantLoad(), description="{kind: constant, rate_per_s: 20000}")
    partitions: int = Field(1, ge=1, le=1024, description="partitions that share the rows, 1 or more")
    key: bool = Field(False, description="true declares a key, for sampling: key and shedder: cohort")
    ahead_s: float = Field(0.0, alias="ahead", description="seconds that its clock is ahead, e.g. 0.5")


class Slower(Part):
    """How fast the machine is from a moment on."""

    from_s: SecondsOrZero = Field(alias="from", description="when it changes, e.g. 30s")
    times: float = Field(gt=0, description="how many times as long a batch takes from then on, e.g. 2")


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class QuerySpec(Part):
    """A streaming query: its class, what it reads, what its batches take."""

    cls: str = Field(alias="class", description="its class, e.g. gold")
    streams: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        min_length=1, description="the stream it reads, or a list"
    )
    fixed_s: SecondsOrZero = Field(
        0.15, alias="fixed", description="time of a batch without rows, e.g. 150ms"
    )
    row_s: SecondsOrZero = Field(20e-6, alias="row", description="of a row, e.g. 20us")
    noise: float = Field(0.05, ge=0, le=1, description="spread of a batch's time, as a part of it")
    slower: tuple[Slower, ...] = Field((), description="[{from: 30s, times: 2}]")

    def machine(self, began_s: float) -> Machine:
        """What its batches take on a cluster that began at a moment of its timer."""
        starts_s = [began_s + step.from_s for step in self.slower]

        def level(now_s: float) -> float:
            at = bisect_right(starts_s, now_s)
            return self.slower[at - 1].times if at else 1.0

        return Machine(self.fixed_s, self.row_s, self.noise, level if self.slower else steady)


class MicrobatchScenario(Part):
    """What to run on the micro-batch plant."""

    plant: Literal["microbatch"] = "microbatch"
    name: str = Field("scenario", description="what to call it")
    duration_s: Seconds = Field(60.0, alias="duration", description="length of the run, e.g. 60s")
    seed: int = Field(0, ge=0, lt=2**31, description="0, 1, 2, ...")
    slots: int = Field(1, ge=1, description="micro-batches that may run at once, 1 or more")
    dry_run: bool = Field(False, description="true decides and logs but sheds nothing")
    stw_s: Seconds = Field(STW_S, alias="stw", description="the source time window of SIC, e.g. 10s")
    overload: float | None = Field(
        None, gt=0, description="scale all loads to this many times what the slots can do, e.g. 1.5"
    )
    rate_scale: float = Field(1.0, gt=0, description="multiplies the rows of all streams")
    capacity: CapacityConfig = Field(CapacityConfig(), description="{policy: dilos}")
    classes: dict[Name, ClassConfig] = Field(min_length=1, description="{gold: {target: 2s, priority: 6}}")
    streams: dict[Name, StreamSpec] = Field(min_length=1, description="{readings: {load: {...}}}")
    queries: dict[Name, QuerySpec] = Field(
        min_length=1, description="{alerts: {class: gold, streams: readings}}"
    )

    @model_validator(mode="after")
    def _known_names(self) -> MicrobatchScenario:
        for name, query in self.queries.items():
            if query.cls not in self.classes:
                raise unknown_name(query.cls, self.classes, "queries", name, "class")
            for stream in query.streams:
                if stream not in self.streams:
                    raise unknown_name(stream, self.streams, "queries", name, "streams")
            if len(set(query.streams)) < len(query.streams):
                raise refused(
                    "must name a stream once",
                    list(query.streams),
                    "leave one out",
                    "queries",
                    name,
                    "streams",
                )
        if self.overload is not None and self.rate_scale != 1.0:
            raise refused("must be given without rate_scale", self.overload, "leave one out", "overload")
        with placing("overload"):
            self.scale()
        return self

    def busy_s(self) -> float:
        """Seconds of batches that the queries ask for in a second, in batches of half their targets."""
        return self._fixed_s() + self.scale() * self._row_s()

    def _fixed_s(self) -> float:
        return sum(q.fixed_s / (self.classes[q.cls].target_s / 2) for q in self.queries.values())

    def _row_s(self) -> float:
        loads = {name: stream.load.counts(self.duration_s) for name, stream in self.streams.items()}
        rates = {name: float(counts.sum()) / self.duration_s for name, counts in loads.items()}
        return sum(q.row_s * rates[stream] for q in self.queries.values() for stream in q.streams)

    def scale(self) -> float:
        """What all loads are multiplied by."""
        if self.overload is None:
            return self.rate_scale
        left_s, row_s = self.overload * self.slots - self._fixed_s(), self._row_s()
        if left_s <= 0 or row_s <= 0:
            raise InvalidInputError(
                f"an overload is more than the fixed costs, {self._fixed_s() / self.slots:.3g}, and has rows",
                self.overload,
                "use fewer queries or longer targets",
            )
        return left_s / row_s


THREE_CLASSES: dict[str, Any] = {
    "name": "three-classes",
    "overload": 2.0,
    "classes": {
        "gold": {"target": "2s", "priority": 6},
        "silver": {"target": "5s", "priority": 3},
        "bulk": {"target": "10s", "priority": 1},
    },
    "streams": {name: {"load": {"kind": "burst"}} for name in ("readings", "clicks", "logs")},
    "queries": {
        "alerts": {"class": "gold", "streams": "readings"},
        "sessions": {"class": "silver", "streams": "clicks"},
        "totals": {"class": "bulk", "streams": "logs"},
    },
}
"""What runs without a file: twice what the machine can do, in bursts."""


def load_microbatch(path: Path | None = None, changes: Mapping[str, Any] | None = None) -> MicrobatchScenario:
    """Reads a scenario of the micro-batch plant.

    Args:
        path: A YAML file; `None` for the default scenario.
        changes: Values that replace the file's, by dotted key. `queries.*.row` is that of every query.
    """
    raw = (
        deepcopy(THREE_CLASSES)
        if path is None
        else {"name": path.stem, **read_mapping(path, "scenario", "examples/scenarios")}
    )
    for key, value in (changes or {}).items():
        for one in _keys(raw, key):
            put(raw, one, value)
    where = "the scenario" if path is None else str(path)
    base = None if path is None else path.absolute().parent
    hint = "see docs/plants.md, the micro-batch plant"
    return checked(MicrobatchScenario, raw, where, base, hint)


def _keys(raw: Mapping[str, Any], key: str) -> list[str]:
    outer, star, rest = key.partition(".*.")
    named = raw.get(outer) if star else None
    return [f"{outer}.{name}.{rest}" for name in named] if isinstance(named, Mapping) else [key]
