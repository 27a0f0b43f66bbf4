"""The key `shed` of a class: what is shed when not all can be in time. A name, or a mapping with `by`.

classes:
  gold: {target: 2s, shed: sample}
  silver: {target: 8s, shed: {by: utility, utility: "priority * amount"}}
  bulk: {target: 20s, shed: {by: window, size: 2s, column: at}}

Each kind of shedding is a part with its settings. In some kinds each query sheds by itself, in others the
class chooses over all its queries.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from penstock.config.mistakes import Part, Seconds, placing, refused
from penstock.grants.plans.sampling import Sampling
from penstock.grants.plans.values import check_window_column
from penstock.policies.shedding import SHEDDERS, Shedder
from penstock.policies.shedding.semantic import SemanticConfig
from penstock.policies.shedding.window import WindowConfig
from penstock.streams.protocol import ARRIVAL

Settings = Any
"""Of a class's shedder: a kind below that looks into rows, or a configuration of a pure shedder; `build`
makes the shedder."""

Within = Literal["query", "class"]
OfQuery = Literal["sample", "row", "segment", "key", "oldest"]
"""Kinds in which each query can shed by itself."""

_BUCKETS = 256
"""As `CohortConfig` has it."""


class ShedSettings(Part):
    """A kind of shedding. A subclass says what it is in the words of the control plane.

    The control plane has three words. `sampling` is what a coin is tossed for in each query, `victims` is
    whether the load manager Deadline sheds the oldest rows of each query instead, and `shedder` is what
    chooses over all queries of the class.
    """

    by: str = Field(description="what is shed, e.g. sample")

    def __str__(self) -> str:
        """As a file has it: a name, or a mapping on one line."""
        return as_written({"by": self.by, **self._given()})

    def _given(self) -> dict[str, Any]:
        """The settings that are not their defaults, as a file has them; `otherwise` is the last."""
        found: dict[str, Any] = {}
        for name, field in sorted(type(self).model_fields.items(), key=lambda each: each[0] == "otherwise"):
            value = getattr(self, name)
            if name != "by" and value != field.default:
                is_time = name.endswith("_s") and isinstance(value, float)
                found[field.alias or name] = f"{value:.12g}s" if is_time else value
        return found

    @property
    def of_query(self) -> OfQuery:
        """What each query sheds by itself, where the class does not choose."""
        return "sample"

    @property
    def sampling(self) -> Sampling:
        """What a coin is tossed for in each query."""
        return _SAMPLINGS.get(self.of_query, "auto")

    @property
    def victims(self) -> Literal["uniform", "oldest"]:
        """Which rows of a query Deadline sheds."""
        return "oldest" if self.of_query == "oldest" else "uniform"

    @property
    def shedder(self) -> str | None:
        """What chooses over all queries of the class; `None` where each query sheds by itself."""
        return None

    def shedder_config(self) -> Settings | None:
        """The settings of the class's shedder, if it has one."""
        return None

    def under_any_manager(self) -> ShedSettings:
        """The same, but for the oldest rows of each query, which Deadline alone sheds: a sample of them."""
        if self.victims == "uniform":
            return self
        return SampleSettings() if self.shedder is None else self.model_copy(update={"otherwise": "sample"})


_SAMPLINGS: Mapping[str, Sampling] = {"row": "row", "segment": "segment", "key": "key"}


class SampleSettings(ShedSettings):
    """Each query keeps a uniform sample of its rows."""

    by: Literal["sample", "row", "segment"] = Field(
        "sample", description="sample, or a coin for each row or segment"
    )

    @property
    def of_query(self) -> OfQuery:
        return self.by


class ChoosingSettings(ShedSettings):
    """The class chooses over all its queries."""

    otherwise: OfQuery = Field(
        "sample",
        description="what each query sheds where the class does not choose: "
        "sample, row, segment, key or oldest",
    )

    @property
    def of_query(self) -> OfQuery:
        return self.otherwise

    @property
    def shedder(self) -> str | None:
        return self.by

    def shedder_config(self) -> Settings | None:
        return SHEDDERS[self.by]()


class _EitherSettings(ChoosingSettings):
    """Each query sheds by itself, or the class chooses over all of them."""

    within: Within = Field(
        "query",
        description="query: each query chooses among its own rows; class: one choice for all its queries",
    )

    @property
    def of_query(self) -> OfQuery:
        return self.otherwise if self.within == "class" else self._alone

    @property
    @abstractmethod
    def _alone(self) -> OfQuery:
        """What it is within a query."""

    @property
    def shedder(self) -> str | None:
        return self._chooser if self.within == "class" else None

    @property
    @abstractmethod
    def _chooser(self) -> str:
        """The shedder that it is within the class."""

    def shedder_config(self) -> Settings | None:
        return SHEDDERS[self._chooser]() if self.within == "class" else None

    @model_validator(mode="after")
    def _consistent(self) -> _EitherSettings:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if self.within == "query" and name != "by" and value != field.default:
                raise refused(
                    "is a setting within the class alone", value, "add within: class, or leave it out", name
                )
        return self


class KeySettings(_EitherSettings):
    """All rows of a key are kept or shed together. Within the class all queries keep the same keys."""

    by: Literal["key"] = Field("key", description="key")
    buckets: int = Field(
        _BUCKETS, ge=2, description="within the class, buckets of the keys' hash, e.g. 256; 2 or more"
    )

    @property
    def _alone(self) -> OfQuery:
        return "key"

    @property
    def _chooser(self) -> str:
        return "cohort"

    def shedder_config(self) -> Settings | None:
        return SHEDDERS["cohort"](self.buckets) if self.within == "class" else None


class OldestSettings(_EitherSettings):
    """What has waited longest is shed."""

    by: Literal["oldest"] = Field("oldest", description="oldest")

    @property
    def _alone(self) -> OfQuery:
        return "oldest"

    @property
    def _chooser(self) -> str:
        return "oldest"


class RandomSettings(ChoosingSettings):
    """The class keeps segments that are drawn from those of all its queries."""

    by: Literal["random"] = Field("random", description="random")


class BalanceSicSettings(ChoosingSettings):
    """The class keeps what evens out SIC over its queries."""

    by: Literal["balance-sic"] = Field("balance-sic", description="balance-sic")
    projection: bool = Field(True, description="true subtracts what waits from what was reported")

    def shedder_config(self) -> Settings | None:
        return SHEDDERS["balance-sic"](self.projection)


# -- by what is in the rows -----------------------------------------------------------------------


class SemanticSettings(ChoosingSettings):
    """The class keeps the rows that are worth most, looked up in their columns."""

    by: Literal["utility", "range"] = Field("utility", description="utility or range")

    @property
    def shedder(self) -> str | None:
        return "semantic"

    def shedder_config(self) -> Settings | None:
        return self

    def build(self, seed: int) -> Shedder:
        """The shedder, with the seed of its coins."""
        return self._pure().build(seed)

    def _pure(self) -> SemanticConfig:
        return SemanticConfig(self.by)

    @property
    @abstractmethod
    def worth(self) -> str:
        """What a row is worth, in CQL."""

    @property
    def inside(self) -> float:
        """A key that is shed first, by range."""
        return 0.0


class UtilitySettings(SemanticSettings):
    """Rows are worth what an expression over their columns says."""

    by: Literal["utility"] = Field("utility", description="utility")
    utility: str = Field(
        description="what a row is worth: an expression of CQL over its columns, e.g. priority * amount"
    )

    @field_validator("utility")
    @classmethod
    def _an_expression(cls, utility: str) -> str:
        from penstock.cql.scalar import check_syntax  # only where it is needed: sqlglot is large

        with placing():
            check_syntax(utility)
        return utility

    @property
    def worth(self) -> str:
        return self.utility


class RangeSettings(SemanticSettings):
    """Rows whose key lies in a range are shed first."""

    by: Literal["range"] = Field("range", description="range")
    key: str = Field(description="the column of numbers that the range is of, e.g. device")
    shed_from: float | None = Field(None, description="lowest key that is shed first; none: no lower end")
    shed_to: float | None = Field(None, description="highest key that is shed first; none: no upper end")

    @model_validator(mode="after")
    def _leaves_some(self) -> RangeSettings:
        with placing():
            self._pure()
        return self

    def _pure(self) -> SemanticConfig:
        return SemanticConfig(self.by, self.shed_from, self.shed_to)

    @property
    def worth(self) -> str:
        """0 inside the range, 1 outside, NULL without a key."""
        from penstock.cql.scalar import quoted

        key = quoted(self.key)
        ends = [f"{key} >= {_written(self.shed_from)}"] if self.shed_from is not None else []
        ends += [f"{key} <= {_written(self.shed_to)}"] if self.shed_to is not None else []
        return f"CASE WHEN {' AND '.join(ends)} THEN 0 WHEN {key} IS NOT NULL THEN 1 END"

    @property
    def inside(self) -> float:
        found = self.shed_to if self.shed_from is None else self.shed_from
        return 0.0 if found is None else found


def _written(end: float) -> str:
    """An end of a range in CQL: a whole number as one, which integers are compared with exactly."""
    return str(int(end)) if end.is_integer() and abs(end) < 2**63 else repr(end)


class WindowSettings(ChoosingSettings):
    """Windows are kept or shed whole."""

    by: Literal["window"] = Field("window", description="window")
    size_s: Seconds = Field(alias="size", description="how long a window is, e.g. 2s")
    column: str | None = Field(
        None, description="the timestamp column that windows are over; none: the stream's own, or arrival"
    )

    @field_validator("size_s")
    @classmethod
    def _whole(cls, size_s: float) -> float:
        if round(size_s * 1e6) < 1:
            raise refused("must be a microsecond or more", f"{size_s:g}s", "for example 2s")
        return size_s

    def shedder_config(self) -> Settings | None:
        return self

    def build(self, seed: int) -> Shedder:
        """The shedder, with the seed of its coins."""
        return WindowConfig().build(seed)

    def column_of(self, event_time: str | None) -> str:
        """The column with a row's time: the one that is named, else the stream's own, else its arrival."""
        return self.column or event_time or ARRIVAL

    @property
    def size_us(self) -> int:
        return round(self.size_s * 1e6)


# -- the key --------------------------------------------------------------------------------------


def as_written(shed: Mapping[str, Any]) -> str:
    """`shed` as a file has it on one line: a name, or a mapping where it has settings."""
    if list(shed) == ["by"]:
        return str(shed["by"])
    text: str = yaml.safe_dump(dict(shed), default_flow_style=True, sort_keys=False, width=10_000)
    return text.strip()


def _with_by(value: object) -> object:
    """A name is short for a mapping with nothing but `by`."""
    if isinstance(value, str):
        return {"by": value}
    if not isinstance(value, Mapping | ShedSettings):
        raise refused(
            "must be a name, or a mapping with `by`",
            repr(value)[:60],
            "for example sample; see docs/shedding.md",
        )
    return value


AnyShed = Annotated[
    Annotated[
        SampleSettings
        | KeySettings
        | OldestSettings
        | RandomSettings
        | BalanceSicSettings
        | UtilitySettings
        | RangeSettings
        | WindowSettings,
        Field(discriminator="by"),
    ],
    BeforeValidator(_with_by),
]
"""What `shed` may be."""


def check_columns(settings: Settings, schema: pa.Schema, stream: str, event_time: str | None) -> None:
    """Refuses a stream that lacks the columns which a shedder looks into, or has other types there.

    Args:
        settings: The shedder's.
        schema: The stream's columns.
        stream: Its name.
        event_time: The column that it declares, if any.
    """
    if isinstance(settings, SemanticSettings):
        from penstock.cql.scalar import compile_number, quoted

        if isinstance(settings, RangeSettings):
            compile_number(quoted(settings.key), schema, stream)
        compile_number(settings.worth, schema, stream)
    if isinstance(settings, WindowSettings):
        check_window_column(schema, settings.column_of(event_time), stream)
