"""The key `shed` of a class: what is shed when not all can be in time. A name, or a mapping with `by`.

classes:
  gold: {target: 2s, shed: sample}
  silver: {target: 8s, shed: {by: utility, utility: "priority * amount"}}
  bulk: {target: 20s, shed: {by: window, size: 2s, column: at}}

Each kind of shedding is a class of settings. In some kinds each query sheds by itself, in others one shedder
chooses over all queries of the class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from penstock.config.mistakes import Seconds, placing, refused
from penstock.config.old_keys import without_buckets
from penstock.config.shed_settings import (
    ChoosingSettings,
    OfQuery,
    SampleSettings,
    ShedSettings,
    ShedTraits,
)
from penstock.grants.plans.values import check_window_column
from penstock.policies.shedding.balance_sic import BalanceSicConfig
from penstock.policies.shedding.semantic import SemanticConfig
from penstock.streams.protocol import ARRIVAL

Within = Literal["query", "class"]


class _EitherSettings(ChoosingSettings):
    """Each query sheds by itself, or one shedder chooses over all queries of the class."""

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
        """What each query sheds where it sheds by itself."""

    @property
    def shedder(self) -> str | None:
        return self._chooser if self.within == "class" else None

    @property
    @abstractmethod
    def _chooser(self) -> str:
        """The shedder that chooses within the class."""

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

    traits: ClassVar[ShedTraits] = ShedTraits("keys")

    by: Literal["key"] = Field("key", description="key")

    @property
    def _alone(self) -> OfQuery:
        return "key"

    @property
    def _chooser(self) -> str:
        return "cohort"


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

    traits: ClassVar[ShedTraits] = ShedTraits("segments", may_exceed_turn=True)

    by: Literal["balance-sic"] = Field("balance-sic", description="balance-sic")
    projection: bool = Field(True, description="true subtracts what waits from what was reported")

    def _shedder_config(self) -> Any:
        return BalanceSicConfig(self.projection)


# -- by what is in the rows -----------------------------------------------------------------------


class SemanticSettings(ChoosingSettings):
    """The class keeps the rows that are worth most. What a row is worth is looked up in its columns."""

    traits: ClassVar[ShedTraits] = ShedTraits("worth", may_exceed_turn=True)

    by: Literal["utility", "range"] = Field("utility", description="utility or range")

    @property
    def shedder(self) -> str | None:
        return "semantic"

    def _shedder_config(self) -> SemanticConfig:
        return SemanticConfig(self.by)

    def check_columns(self, schema: pa.Schema, stream: str, event_time: str | None) -> None:
        from penstock.cql.scalar import compile_number  # only where it is needed: sqlglot is large

        compile_number(self.worth, schema, stream)

    @property
    @abstractmethod
    def worth(self) -> str:
        """What a row is worth, in CQL."""

    @property
    def inside(self) -> float:
        """A key that lies in the range which is shed first."""
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
        from penstock.cql.scalar import check_syntax

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
            self._shedder_config()
        return self

    def _shedder_config(self) -> SemanticConfig:
        return SemanticConfig(self.by, self.shed_from, self.shed_to)

    def check_columns(self, schema: pa.Schema, stream: str, event_time: str | None) -> None:
        from penstock.cql.scalar import compile_number, quoted

        compile_number(quoted(self.key), schema, stream)
        super().check_columns(schema, stream, event_time)

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

    traits: ClassVar[ShedTraits] = ShedTraits("windows")

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

    def check_target(self, target_s: float) -> None:
        if self.size_s > target_s:
            raise refused(
                "must be at most the target: a longer window never waits whole",
                f"{self.size_s:g}s for a target of {target_s:g}s",
                "give the class a longer target, or let it shed something else",
                *("shed", "size"),
            )

    def check_columns(self, schema: pa.Schema, stream: str, event_time: str | None) -> None:
        check_window_column(schema, self.column_of(event_time), stream)

    def column_of(self, event_time: str | None) -> str:
        """The column with a row's time: the one that is named, else the stream's own, else its arrival."""
        return self.column or event_time or ARRIVAL

    @property
    def size_us(self) -> int:
        return round(self.size_s * 1e6)


# -- the key --------------------------------------------------------------------------------------


def _with_by(value: object, info: ValidationInfo) -> object:
    """A name is short for a mapping with nothing but `by`."""
    if isinstance(value, str):
        return {"by": value}
    if not isinstance(value, Mapping | ShedSettings):
        raise refused(
            "must be a name, or a mapping with `by`",
            repr(value)[:60],
            "for example sample; see docs/shedding.md",
        )
    return without_buckets(value, info) if isinstance(value, Mapping) else value


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
