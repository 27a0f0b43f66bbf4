"""What arrives in a stream of a micro-batch scenario: rows by hundredths of a second."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from penstock.config.mistakes import Part, Seconds, SecondsOrZero, refused
from penstock.config.places import located_text
from penstock.sim.workloads.traces import read_trace
from penstock.vocabulary.model import FloatArray

BIN_S = 0.01
"""Rows are counted by bins of this length, and arrive evenly inside one."""

Rate = Annotated[float, Field(ge=0, description="rows a second, e.g. 20000")]


class Load(Part):
    """What every load has: its kind."""

    kind: str

    def counts(self, duration_s: float) -> FloatArray:
        """Rows of each bin; a load that is shorter ends in silence."""
        raise NotImplementedError


def _times(duration_s: float) -> FloatArray:
    return np.arange(max(1, round(duration_s / BIN_S)), dtype=np.float64) * BIN_S


class ConstantLoad(Load):
    """Always the same rate."""

    kind: Literal["constant"] = "constant"
    rate_per_s: Rate = 20_000.0

    def counts(self, duration_s: float) -> FloatArray:
        return np.full(_times(duration_s).size, self.rate_per_s * BIN_S)


class BurstLoad(Load):
    """A rate, and now and then many times as much."""

    kind: Literal["burst"] = "burst"
    rate_per_s: Rate = 20_000.0
    times: float = Field(5.0, ge=0, description="how many times the rate comes in a burst, e.g. 5")
    every_s: Seconds = Field(20.0, alias="every", description="from one burst to the next, e.g. 20s")
    lasts_s: Seconds = Field(5.0, alias="lasts", description="how long a burst lasts, e.g. 5s")
    first_s: SecondsOrZero = Field(10.0, alias="first", description="when the first one comes, e.g. 10s")

    def counts(self, duration_s: float) -> FloatArray:
        after_s = _times(duration_s) - self.first_s
        burst = (after_s >= -BIN_S / 2) & (after_s % self.every_s < self.lasts_s)
        return np.where(burst, self.times, 1.0) * self.rate_per_s * BIN_S


class RateStep(Part):
    """A rate from a moment on."""

    from_s: SecondsOrZero = Field(alias="from", description="when it starts, e.g. 10s")
    rate_per_s: Rate


class StepLoad(Load):
    """Rates, one after the other; nothing before the first."""

    kind: Literal["step"] = "step"
    levels: tuple[RateStep, ...] = Field(
        min_length=1, description="[{from: 0s, rate_per_s: 10000}, {from: 20s, rate_per_s: 50000}]"
    )

    @field_validator("levels")
    @classmethod
    def _in_order(cls, levels: tuple[RateStep, ...]) -> tuple[RateStep, ...]:
        times_s = [level.from_s for level in levels]
        if times_s != sorted(set(times_s)):
            raise refused("must be in order of time", times_s, "sort them by `from`")
        return levels

    def counts(self, duration_s: float) -> FloatArray:
        starts_s = np.array([level.from_s for level in self.levels])
        rates = np.array([0.0, *(level.rate_per_s for level in self.levels)])
        return rates[np.searchsorted(starts_s, _times(duration_s) + BIN_S / 2, side="right")] * BIN_S


class TraceLoad(Load):
    """A file of arrival times, or of counts a second."""

    kind: Literal["trace"] = "trace"
    path: str = Field(description="one arrival time in seconds a line, or lines second,count; .gz too")
    rate_scale: float = Field(1.0, gt=0, description="2 doubles the rows; bursts stay where they are")

    @field_validator("path")
    @classmethod
    def _located(cls, path: str, info: ValidationInfo) -> str:
        return located_text(path, info)

    def counts(self, duration_s: float) -> FloatArray:
        found = read_trace(self.path).counts_per(BIN_S)[: _times(duration_s).size]
        return self.rate_scale * np.pad(found, (0, _times(duration_s).size - found.size)).astype(np.float64)


AnyLoad = Annotated[ConstantLoad | BurstLoad | StepLoad | TraceLoad, Field(discriminator="kind")]
