"""The shedder of a class on Spark: its name, its settings, and what it looks up in the rows.

classes:
  gold: {target: 8s, shedder: semantic, shedder_settings: {utility: "priority * amount"}}
  bulk: {target: 20s, shedder: window, shedder_settings: {size: 2s, column: at}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from penstock.config.mistakes import Part, Seconds, as_invalid_input, checked, placing, refused
from penstock.grants.plans.values import check_window_column
from penstock.policies.shedding import SHEDDERS, Shedder
from penstock.policies.shedding.semantic import SemanticConfig
from penstock.policies.shedding.window import WindowConfig
from penstock.streams.protocol import ARRIVAL
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

CLASS_SHEDDERS = ("balance-sic", "random", "oldest", "cohort", "semantic", "window")
"""Those that choose among what waits for all queries of a class."""


class SemanticSettings(Part):
    """What rows are worth, looked up in their columns."""

    by: Literal["utility", "range"] = Field("utility", description="utility or range")
    utility: str | None = Field(
        None, description="what a row is worth: an expression of CQL over its columns, e.g. amount * 2"
    )
    key: str | None = Field(None, description="the column of numbers that a range is of")
    shed_from: float | None = Field(None, description="lowest key that is shed first; none: no lower end")
    shed_to: float | None = Field(None, description="highest key that is shed first; none: no upper end")

    @model_validator(mode="after")
    def _consistent(self) -> SemanticSettings:
        with placing():
            self._pure()
        needed, idle = ("utility", "key") if self.by == "utility" else ("key", "utility")
        if getattr(self, needed) is None:
            example = "priority * amount" if needed == "utility" else "device"
            raise refused(f"is required by {self.by}", "nothing", f"for example {example}", needed)
        if getattr(self, idle) is not None:
            raise refused(f"is not a key by {self.by}", repr(getattr(self, idle)), "leave it out", idle)
        if self.utility is not None:
            from penstock.cql.scalar import check_syntax  # only where it is needed: sqlglot is large

            with placing("utility"):
                check_syntax(self.utility)
        return self

    def _pure(self) -> SemanticConfig:
        return SemanticConfig(self.by, self.shed_from, self.shed_to)

    def build(self, seed: int) -> Shedder:
        return self._pure().build(seed)

    @property
    def worth(self) -> str:
        """What a row is worth, in CQL: by range 0 inside, 1 outside, NULL without a key."""
        if self.utility is not None:
            return self.utility
        from penstock.cql.scalar import quoted

        key = quoted(self.key or "")
        ends = [f"{key} >= {_written(self.shed_from)}"] if self.shed_from is not None else []
        ends += [f"{key} <= {_written(self.shed_to)}"] if self.shed_to is not None else []
        return f"CASE WHEN {' AND '.join(ends)} THEN 0 WHEN {key} IS NOT NULL THEN 1 END"

    @property
    def inside(self) -> float:
        """A key that is shed first, by range."""
        found = self.shed_to if self.shed_from is None else self.shed_from
        return 0.0 if found is None else found


def _written(end: float) -> str:
    """An end of a range in CQL: a whole number as one, which integers are compared with exactly."""
    return str(int(end)) if end.is_integer() and abs(end) < 2**63 else repr(end)


class WindowSettings(Part):
    """Which windows are kept or shed whole."""

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

    def build(self, seed: int) -> Shedder:
        return WindowConfig().build(seed)

    def column_of(self, event_time: str | None) -> str:
        """The column with a row's time: the one that is named, else the stream's own, else its arrival."""
        return self.column or event_time or ARRIVAL

    @property
    def size_us(self) -> int:
        return round(self.size_s * 1e6)


Settings = Any
"""Of a class's shedder: one of the parts above, or a configuration of a pure one; `build` makes it."""

_PARTS: Mapping[str, type[Part]] = {"semantic": SemanticSettings, "window": WindowSettings}


def shedder_settings(name: str, settings: Mapping[str, Any]) -> Settings:
    """A class's shedder from plain values: the names of its settings and their types checked."""
    if name in _PARTS:
        return checked(_PARTS[name], dict(settings), name, hint="see docs/shedding.md")
    known = {f.name for f in fields(SHEDDERS[name])}
    if settings and not known:
        raise InvalidInputError(f"{name} has no settings", ", ".join(settings), "leave them out")
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"a setting of {name}", key, known)
    try:
        return TypeAdapter(SHEDDERS[name]).validate_python(dict(settings))
    except ValidationError as error:
        raise as_invalid_input(error, name, default_hint="see docs/shedding.md") from None


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

        if settings.key is not None:
            compile_number(quoted(settings.key), schema, stream)
        compile_number(settings.worth, schema, stream)
    if isinstance(settings, WindowSettings):
        check_window_column(schema, settings.column_of(event_time), stream)
