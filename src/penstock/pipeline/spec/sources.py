"""Sources of a stream's rows: a trace, a generator, files, or none (another process or a query feeds it)."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from penstock.config.mistakes import Part, Seconds, SecondsOrZero, refused
from penstock.config.places import Place, located_text

SYNTHETIC = "synthetic"
"""Name of the trace that is made, not read; it has bursts like network traffic."""

FileFormat = Literal["parquet", "csv", "json", "arrow"]

_SUFFIXES: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


# -- rates ----------------------------------------------------------------------------------------


class ConstantRate(Part):
    """A constant rate."""

    kind: Literal["constant"] = "constant"
    rate_per_s: float = Field(gt=0, description="rows a second, e.g. 1000")

    def rows_until(self, at_s: float) -> float:
        """Rows that are due by a moment after the start."""
        return self.rate_per_s * at_s


class RateStep(Part):
    """A rate that holds from a moment on."""

    from_s: SecondsOrZero = Field(alias="from", description="when it begins, e.g. 10s; the first at 0s")
    rate_per_s: float = Field(ge=0, description="rows a second, e.g. 1000")


class StepRate(Part):
    """Rates one after the other; the last rate holds for ever."""

    kind: Literal["steps"] = "steps"
    steps: tuple[RateStep, ...] = Field(
        min_length=1, description="[{from: 0s, rate_per_s: 100}, {from: 20s, rate_per_s: 900}]"
    )

    @model_validator(mode="after")
    def _in_order(self) -> StepRate:
        times_s = [step.from_s for step in self.steps]
        if times_s[0] != 0 or times_s != sorted(set(times_s)):
            raise refused("must begin at 0s and be in order of time", times_s, "sort them by `from`", "steps")
        return self

    def rows_until(self, at_s: float) -> float:
        """Rows that are due by a moment after the start."""
        ends_s = [*(step.from_s for step in self.steps[1:]), float("inf")]
        return sum(
            step.rate_per_s * max(0.0, min(at_s, end_s) - step.from_s)
            for step, end_s in zip(self.steps, ends_s, strict=True)
        )


class OnOffRate(Part):
    """Bursts: a high rate, then a low one, over and over."""

    kind: Literal["on_off"] = "on_off"
    high_per_s: float = Field(gt=0, description="rows a second in a burst, e.g. 5000")
    low_per_s: float = Field(0.0, ge=0, description="rows a second between bursts, e.g. 100")
    high_s: Seconds = Field(alias="high_for", description="how long a burst lasts, e.g. 5s")
    low_s: Seconds = Field(alias="low_for", description="how long the time between bursts lasts, e.g. 10s")

    def rows_until(self, at_s: float) -> float:
        """Rows that are due by a moment after the start."""
        whole, rest_s = divmod(at_s, self.high_s + self.low_s)
        high_s = whole * self.high_s + min(rest_s, self.high_s)
        return self.high_per_s * high_s + self.low_per_s * (at_s - high_s)


AnyRate = Annotated[ConstantRate | StepRate | OnOffRate, Field(discriminator="kind")]


def _rate(value: object) -> object:
    """A plain number is a constant rate."""
    return value if isinstance(value, dict | Part) else {"kind": "constant", "rate_per_s": value}


# -- values ---------------------------------------------------------------------------------------


class ColumnValues(Part):
    """Values of a generated column: numbers of a range, or choices, all equally likely."""

    low: float | None = Field(None, description="smallest number, e.g. 0")
    high: float | None = Field(None, description="largest number, e.g. 999")
    choices: tuple[Any, ...] | None = Field(None, min_length=1, description="a list, e.g. [ok, hot]")

    @model_validator(mode="after")
    def _range_or_choices(self) -> ColumnValues:
        ranged = (self.low is not None, self.high is not None)
        if any(ranged) == (self.choices is not None) or any(ranged) != all(ranged):
            raise refused(
                "must have low and high, or choices",
                self.model_dump(exclude_none=True),
                "{low: 0, high: 999}",
            )
        if self.low is not None and self.high is not None and self.low > self.high:
            raise refused("must have low no larger than high", f"{self.low:g} > {self.high:g}", "swap them")
        return self


class _Generated(Part):
    """A source that generates rows."""

    values: dict[str, ColumnValues] = Field(
        {}, description="{device: {low: 0, high: 999}}; other columns get values of their type"
    )


# -- sources --------------------------------------------------------------------------------------


def _trace(value: str, info: ValidationInfo) -> str:
    return value if value == SYNTHETIC else located_text(value, info)


class ReplaySource(_Generated):
    """Rows at the times of a trace: one arrival time a line, or lines second,count."""

    kind: Literal["replay"] = "replay"
    trace: Annotated[str, AfterValidator(_trace)] = Field(
        SYNTHETIC, description="a file of arrival times or of lines second,count; or synthetic"
    )
    scale: float = Field(1.0, gt=0, description="2 doubles the number of rows; bursts stay where they are")
    speed: float = Field(1.0, gt=0, description="2 plays the trace in half the time")
    loop: bool = Field(False, description="true begins again at the end")


class GeneratorSource(_Generated):
    """Rows at a rate."""

    kind: Literal["generator"] = "generator"
    rate: Annotated[AnyRate, BeforeValidator(_rate)] = Field(
        description="rows a second, e.g. 1000, or {kind: on_off, high_per_s: 900, high_for: 5s, low_for: 9s}"
    )


class LogSource(Part):
    """No source: the stream is complete, or another process or a query's sink feeds it."""

    kind: Literal["log"] = "log"


class FilesSource(Part):
    """Files whose rows are appended once, as the files appear."""

    kind: Literal["files"] = "files"
    path: Place = Field(description="a file or a pattern, e.g. incoming/*.parquet")
    format: FileFormat | None = Field(None, description="parquet, csv, json (a row a line) or arrow")

    @model_validator(mode="after")
    def _known_format(self) -> FilesSource:
        if self.format is None and PurePath(self.path).suffix.lower() not in _SUFFIXES:
            raise refused(
                "must say its format where the path does not",
                repr(PurePath(self.path).name),
                "add format: parquet, csv, json or arrow",
                "path",
            )
        return self

    @property
    def file_format(self) -> FileFormat:
        """The format as given, or by the path's ending."""
        return self.format or _SUFFIXES[PurePath(self.path).suffix.lower()]


AnySource = Annotated[ReplaySource | GeneratorSource | LogSource | FilesSource, Field(discriminator="kind")]


def kind_only(value: object) -> object:
    """`log` is short for `{kind: log}`."""
    return {"kind": value} if isinstance(value, str) else value
