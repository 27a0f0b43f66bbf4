"""A stream of a pipeline: its columns, its time, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from penstock.config.mistakes import Part, SecondsOrZero, placing, refused, unknown_name
from penstock.pipeline.spec.sources import (
    AnySource,
    ColumnValues,
    GeneratorSource,
    LogSource,
    ReplaySource,
    kind_only,
)
from penstock.streams.layout import Fsync
from penstock.streams.protocol import RESERVED_COLUMNS
from penstock.vocabulary.schema import arrow_schema, parse_type


class ChangesConfig(Part):
    """Settings of a stream whose rows are changes of a relation, for queries in CQL."""

    sign: str = Field(description="the column with + in rows that insert a tuple, - in rows that delete one")
    key: tuple[str, ...] = Field(
        (), description="columns that tell tuples apart, e.g. [id]; none: all of them"
    )


class StreamConfig(Part):
    """One stream: its columns, its time, and its source."""

    columns: dict[str, str] | None = Field(
        None, alias="schema", min_length=1, description="{device: long, celsius: double, at: timestamp}"
    )
    event_time: str | None = Field(None, description="the timestamp column that windows go by")
    lateness_s: SecondsOrZero = Field(
        0.0, alias="lateness", description="how late a row may be by its event time (watermark), e.g. 10s"
    )
    partitions: int = Field(1, ge=1, description="log partitions, 1 or more")
    key: str | None = Field(None, description="column whose rows are shed together")
    changes: ChangesConfig | None = Field(
        None, description="{sign: op, key: [id]}: its rows insert and delete the tuples of a relation"
    )
    fsync: Fsync = Field("never", description="when rows reach the disk: never, interval or always")
    source: Annotated[AnySource, BeforeValidator(kind_only)] = Field(
        LogSource(), description="{kind: replay}, generator, log or files with its settings"
    )

    @model_validator(mode="after")
    def _consistent(self) -> StreamConfig:
        if self.columns is None:
            if not isinstance(self.source, LogSource):
                raise refused(
                    "is required unless the source is log",
                    "nothing",
                    "{device: long, at: timestamp}",
                    "schema",
                )
        else:
            self._check_columns(self.columns)
        if self.lateness_s > 0 and self.event_time is None:
            raise refused(
                "needs an event_time", f"{self.lateness_s:g}s", "name a timestamp column", "lateness"
            )
        if self.changes is not None:
            self._check_changes(self.changes)
        return self

    def _check_changes(self, changes: ChangesConfig) -> None:
        """Refuses wrong settings. A tuple's changes must be in one partition, to be applied in order."""
        columns, at = self.columns, ("changes",)
        if columns is None:
            raise refused("needs a schema", "none", "{id: long, op: string, at: timestamp}", *at)
        for place, name in (("sign", changes.sign), *(("key", key) for key in changes.key)):
            if name not in columns:
                raise unknown_name(name, columns, *at, place)
        if parse_type(columns[changes.sign])[0] != "STRING":
            got = f"{changes.sign!r}, a {columns[changes.sign]}"
            raise refused("must be a column of texts, + or -", got, f"{changes.sign}: string", *at, "sign")
        tuples = [name for name in columns if name not in (changes.sign, self.event_time)]
        if not tuples or not set(changes.key) <= set(tuples):
            got = ", ".join(changes.key) or "none"
            hint = "not the event time, nor the sign of a change"
            raise refused("must have columns of the relation's tuples", got, hint, *at, "key")
        if self.lateness_s > 0:
            hint = "leave it out: a change counts from its time on, or from when it comes"
            raise refused("is not a key beside changes", f"{self.lateness_s:g}s", hint, "lateness")
        if self.partitions > 1 and self.key not in (changes.key or tuples):
            hint = f"key: {(changes.key or tuples)[0]}, so that a tuple's changes stay in order"
            raise refused("must be a column by which changes find their tuple", repr(self.key), hint, "key")

    def _check_columns(self, columns: dict[str, str]) -> None:
        seen: dict[str, str] = {}
        for name, text in columns.items():
            with placing("schema", name):
                parse_type(text)
            if not name.strip():
                raise refused("must have names for its columns", repr(name), "for example device", "schema")
            if name.lower() in RESERVED_COLUMNS:
                raise refused(
                    "is the name of a metadata column",
                    repr(name),
                    f"rename it, e.g. {name.strip('_')}",
                    "schema",
                    name,
                )
            if name.lower() in seen:
                raise refused(
                    "must differ from the others by more than case",
                    f"{seen[name.lower()]!r} and {name!r}",
                    "rename one; names in SQL have no case",
                    "schema",
                    name,
                )
            seen[name.lower()] = name
        for at in ("key", "event_time"):
            column = getattr(self, at)
            if column is not None and column not in columns:
                raise unknown_name(column, columns, at)
        if self.event_time is not None and parse_type(columns[self.event_time])[0] != "TIMESTAMP":
            raise refused(
                "must be a timestamp column",
                f"{self.event_time!r}, a {columns[self.event_time]}",
                f"write {self.event_time}: timestamp in the schema",
                "event_time",
            )
        if isinstance(self.source, ReplaySource | GeneratorSource):
            _check_values(self.source.values, columns)

    def arrow_schema(self) -> pa.Schema | None:
        """The user's columns; `None` if only the log knows them."""
        return None if self.columns is None else arrow_schema(self.columns)


def _check_values(values: Mapping[str, ColumnValues], columns: Mapping[str, str]) -> None:
    for name in values:
        if name not in columns:
            raise unknown_name(name, columns, "source", "values", name)
    for name, text in columns.items():
        (ddl, arrow), at = parse_type(text), ("source", "values", name)
        if name not in values:
            if pa.types.is_date(arrow) or pa.types.is_binary(arrow) or pa.types.is_decimal(arrow):
                raise refused(f"is required for a column of type {ddl}", "nothing", "give choices", *at)
            continue
        choices = values[name].choices
        if choices is None:
            if not (pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow)):
                raise refused("can have a range only in a column of numbers", ddl, "give choices", *at)
            continue
        try:
            pa.array(choices, arrow)
        except (pa.ArrowException, TypeError, ValueError):
            raise refused(f"must have choices of type {ddl}", list(choices), "see the schema", *at) from None
