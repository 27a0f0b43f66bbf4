"""What all kinds of shedding have in common: what each kind says about itself to the control plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa
import yaml
from pydantic import Field

from penstock.config.mistakes import Part
from penstock.grants.plans.sampling import Sampling
from penstock.policies.shedding import SHEDDERS, Shedder

OfQuery = Literal["sample", "row", "segment", "key", "oldest"]
"""Kinds in which each query can shed by itself."""
Choice = Literal["segments", "keys", "worth", "windows"]
"""What a class's shedder chooses among. The control plane has a strategy for each."""


@dataclass(frozen=True, slots=True)
class ShedTraits:
    """What the control plane must know about a kind of shedding, besides the decisions of its shedder.

    Attributes:
        chooses: What the shedder chooses among.
        may_exceed_turn: Whether the shedder may keep more rows of one query than the query's turn holds, and
            fewer rows of the other queries. The query's batch is then longer than its turn.
    """

    chooses: Choice = "segments"
    may_exceed_turn: bool = False


class ShedSettings(Part):
    """A kind of shedding. A subclass says what it is in the words of the control plane.

    The control plane has three words. `sampling` is what a coin is tossed for in each query, `victims` is
    whether the load manager Deadline sheds the oldest rows of each query instead, and `shedder` is what
    chooses over all queries of the class. Where there is a shedder, `traits` says how the control plane asks
    it.
    """

    traits: ClassVar[ShedTraits] = ShedTraits()

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

    def build_shedder(self, seed: int) -> Shedder | None:
        """Builds the class's shedder, if it has one, with the seed of its coins."""
        return None

    def check_target(self, target_s: float) -> None:
        """Refuses settings that do not go with the delay target of the class."""

    def check_columns(self, schema: pa.Schema, stream: str, event_time: str | None) -> None:
        """Refuses a stream that lacks the columns which the shedder looks into, or has other types there.

        Args:
            schema: The stream's columns.
            stream: The stream's name.
            event_time: The column that the stream declares as its time, if any.
        """

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
    """One shedder chooses over all queries of the class."""

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

    def build_shedder(self, seed: int) -> Shedder | None:
        shedder: Shedder | None = None if self.shedder is None else self._shedder_config().build(seed)
        return shedder

    def _shedder_config(self) -> Any:
        """The configuration with which the shedder is built."""
        return SHEDDERS[str(self.shedder)]()


def as_written(shed: Mapping[str, Any]) -> str:
    """`shed` as a file has it on one line: a name, or a mapping where it has settings."""
    if list(shed) == ["by"]:
        return str(shed["by"])
    text: str = yaml.safe_dump(dict(shed), default_flow_style=True, sort_keys=False, width=10_000)
    return text.strip()
