"""Workloads as a scenario describes them: a kind, its parameters, and how it is scaled."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from penstock.sim.workloads import arrivals as workloads
from penstock.sim.workloads.network import Kind, Network
from penstock.sim.workloads.traces import Arrivals, overload, read_trace, scale_rate
from penstock.vocabulary.durations import parse_duration_s
from penstock.vocabulary.errors import InvalidInputError, require_positive


def load_at(network: Network, rate_per_s: float) -> float:
    """CPU seconds a second that a network needs if every source has this rate and windows are full."""
    load = 0.0
    out_per_s: list[float] = []
    for op in network.operators:
        rates = [out_per_s[network.index[name]] for name in op.inputs] or [rate_per_s]
        met_per_s = 2 * rates[0] * rates[1] * op.window_s if op.kind is Kind.JOIN else 0.0
        load += sum(rates) * (op.cost_s + network.turn_cost_s / network.batch_rows)
        load += met_per_s * op.probe_cost_s
        out_per_s.append(op.selectivity * (met_per_s if op.kind is Kind.JOIN else rates[0]))
    return load


def rate_for_load(network: Network, load: float) -> float:
    """The rate of every source at which a network needs a load; with joins, load grows faster than rate."""
    low, high = 0.0, load / (network.cost_per_row_s() * len(network.sources))
    if load_at(network, high) <= load * (1 + 1e-9):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if load_at(network, middle) < load else (low, middle)
    return low


def capacity_per_s(network: Network, headroom: float) -> float:
    """Rows a second of each source, all with the same rate, at which the CPU is full."""
    return rate_for_load(network, headroom)


def _seconds(value: object, info: ValidationInfo) -> float:
    name = (info.field_name or "duration").removesuffix("_s")
    return parse_duration_s(value, name, allow_zero=name == "from")


Seconds = Annotated[float, BeforeValidator(_seconds)]


class ScenarioPart(BaseModel):
    """A part of a scenario: no unknown keys; a file has `period: 500ms`, Python `period_s=0.5`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True)


class Level(ScenarioPart):
    """A rate that holds from a moment on."""

    from_s: Seconds = Field(alias="from", description="when the level starts, e.g. 10s; the first at 0s")
    rate_per_s: float = Field(description="rows a second, e.g. 350")


class Workload(ScenarioPart):
    """The part that all workloads have: their kind, and how they are scaled."""

    kind: str
    rate_scale: float = Field(1.0, description="2 doubles the number of rows; bursts stay where they are")
    time_scale: float = Field(1.0, description="0.5 plays twice as fast; 1e-6 reads microseconds")
    overload: float | None = Field(None, description="2 makes the mean load twice what the machine can do")

    @model_validator(mode="after")
    def _one_scale(self) -> Workload:
        require_positive("time_scale", self.time_scale, "1 leaves the workload as it is")
        require_positive("rate_scale", self.rate_scale, "1 leaves the workload as it is")
        if self.overload is not None:
            require_positive("overload", self.overload, "1 is exactly the capacity, 2 twice as much")
            if self.rate_scale != 1.0:
                raise InvalidInputError(
                    "a workload is scaled by rate_scale or by overload, not by both",
                    f"rate_scale {self.rate_scale:g} and overload {self.overload:g}",
                    "leave one of them out",
                )
        return self

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        """The arrivals before scaling; a workload of fixed length ignores the duration."""
        raise NotImplementedError

    def arrivals(self, network: Network, headroom: float, duration_s: float | None, seed: int) -> Arrivals:
        """The arrivals of each source: scaled, and cut to the duration or followed by silence."""
        made = self._in_time(duration_s, seed)
        if duration_s is not None and duration_s < made.duration_s:
            made = Arrivals(made.times_s[made.times_s <= duration_s], duration_s, made.name)
        if not made.count:
            raise InvalidInputError(
                "a workload must have a row to run on",
                f"none in the first {made.duration_s:g} s of {made.name}",
                "raise the duration or the rate",
            )
        if self.overload is not None:
            made = overload(made, rate_for_load(network, self.overload * headroom), 1.0, seed)
        made = scale_rate(made, self.rate_scale, seed)
        return Arrivals(made.times_s, max(duration_s or 0.0, made.duration_s), made.name)

    def _in_time(self, duration_s: float | None, seed: int) -> Arrivals:
        made = self.generate(400.0 if duration_s is None else duration_s / self.time_scale, seed)
        return Arrivals(made.times_s * self.time_scale, made.duration_s * self.time_scale, made.name)


class Constant(Workload):
    """Evenly spaced rows."""

    kind: Literal["constant"] = "constant"
    rate_per_s: float = Field(350.0, description="rows a second, e.g. 350")

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.constant(self.rate_per_s, duration_s)


class Step(Workload):
    """Levels, one after the other."""

    kind: Literal["step"] = "step"
    levels: tuple[Level, ...] = Field(
        (Level(from_s=0.0, rate_per_s=100.0), Level(from_s=20.0, rate_per_s=350.0)),
        description="[{from: 0s, rate_per_s: 100}, {from: 20s, rate_per_s: 350}]",
    )

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.step([(level.from_s, level.rate_per_s) for level in self.levels], duration_s)


class Sinusoid(Workload):
    """A rate that swings."""

    kind: Literal["sinusoid"] = "sinusoid"
    low_per_s: float = Field(0.0, description="lowest rate, rows a second")
    high_per_s: float = Field(400.0, description="highest rate, rows a second")
    swing_s: Seconds = Field(100.0, alias="swing", description="length of one swing, e.g. 100s")

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.sinusoid(self.low_per_s, self.high_per_s, self.swing_s, duration_s)


class Pareto(Workload):
    """Long-tailed rates (tu2006 section 5)."""

    kind: Literal["pareto"] = "pareto"
    mean_rate_per_s: float = Field(264.0, description="mean rate, rows a second")
    bias: float = Field(1.0, description="0.1 to 1.5; smaller is burstier")
    hold_s: Seconds = Field(1.0, alias="hold", description="how long a drawn rate holds, e.g. 1s")
    peak_to_mean: float = Field(4.0, description="highest rate over the mean")

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.pareto(
            self.mean_rate_per_s, self.bias, duration_s, self.hold_s, seed, self.peak_to_mean
        )


class SC(Workload):
    """S_c of pham2016: 200/s, then 350/s, for 400 s."""

    kind: Literal["s_c"] = "s_c"

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.s_c()


class SStep(Workload):
    """S_step of pham2016: a higher level every 40 s, until even dropping overloads."""

    kind: Literal["s_step"] = "s_step"
    first_per_s: float = Field(200.0, description="first level, rows a second")
    growth: float = Field(1.5, description="each level over the one before, above 1")

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.s_step(self.first_per_s, self.growth)


class SR(Workload):
    """S_r of pham2016: 400 s of real network traffic, or a synthetic stand-in if the data is absent."""

    kind: Literal["s_r"] = "s_r"
    data_dir: str | None = Field(None, description="folder that holds lbl-tcp-400s")

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.s_r(self.data_dir)


class SelfSimilar(Workload):
    """Bursts at every time scale, like network traffic; different for every seed."""

    kind: Literal["self_similar"] = "self_similar"
    mean_rate_per_s: float = Field(264.0, description="mean rate, rows a second")
    peak_per_s: float | None = Field(None, description="highest count in a second; leave it out for any")
    variance_to_mean: float = Field(34.5, description="of the counts a second; above 1, which is Poisson")
    hurst: float = Field(0.9, description="0.5 has no memory; network traffic has 0.7 to 0.9")

    def generate(self, duration_s: float, seed: int) -> Arrivals:
        return workloads.self_similar(
            self.mean_rate_per_s, self.peak_per_s, self.variance_to_mean, duration_s, self.hurst, seed
        )


class Trace(Workload):
    """A file of arrival times, or of counts a second. Its first second becomes 0."""

    kind: Literal["trace"] = "trace"
    path: str = Field(description="a file with one arrival time a line, or lines second,count; .gz too")

    def _in_time(self, duration_s: float | None, seed: int) -> Arrivals:
        try:
            return read_trace(self.path, self.time_scale, origin=_first_second(Path(self.path)))
        except InvalidInputError:
            read_trace(
                self.path, self.time_scale
            )  # so that the error is about the times as the file has them
            raise


WORKLOADS: dict[str, type[Workload]] = {
    "constant": Constant,
    "step": Step,
    "sinusoid": Sinusoid,
    "pareto": Pareto,
    "s_c": SC,
    "s_step": SStep,
    "s_r": SR,
    "self_similar": SelfSimilar,
    "trace": Trace,
}
"""Workloads by the kind that a scenario names."""

AnyWorkload = Annotated[
    Constant | Step | Sinusoid | Pareto | SC | SStep | SR | SelfSimilar | Trace, Field(discriminator="kind")
]


def _first_second(path: Path) -> float:
    """The whole second (or other unit) in which a trace begins; 0 if `read_trace` will refuse the file."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as lines:
            for line in lines:
                try:
                    first = float(line.removeprefix(b"\xef\xbb\xbf").split(b",")[0])
                except ValueError:
                    continue  # a header, a comment or a blank line
                return float(math.floor(first)) if 0 <= first < math.inf else 0.0
    except (OSError, EOFError, zlib.error):
        pass
    return 0.0
