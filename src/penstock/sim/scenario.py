"""Scenarios: what to simulate, from a YAML file or from Python, checked before anything runs.

A mistake gives one `InvalidInputError`, which names the key, its place, and the nearest known key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from penstock.config.flow import typed_manager_config
from penstock.config.mistakes import checked, read_mapping
from penstock.policies.load import Manager
from penstock.sim.workloads import arrivals as workloads
from penstock.sim.workloads.network import Kind, Network, Operator
from penstock.sim.workloads.networks import PHAM_HEADROOM, borealis, qn_complex, qn_flat, qn_long
from penstock.sim.workloads.specs import SR, AnyWorkload, ScenarioPart, Seconds, capacity_per_s
from penstock.sim.workloads.traces import Arrivals
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError, require_positive
from penstock.vocabulary.model import QueryClass

if TYPE_CHECKING:
    from penstock.sim.engine.plant import SimulatedPlant

__all__ = ["NETWORKS", "Scenario", "capacity_per_s", "load_scenario", "parse_scenario"]

NETWORKS: dict[str, Callable[[], Network]] = {
    "flat": qn_flat,
    "complex": qn_complex,
    "long": qn_long,
    "borealis": borealis,
}
"""Networks that a scenario can name."""

KINDS = {
    "source": Kind.SOURCE,
    "select": Kind.OPERATOR,
    "project": Kind.OPERATOR,
    "aggregate": Kind.OPERATOR,
    "operator": Kind.OPERATOR,
    "join": Kind.JOIN,
    "output": Kind.OUTPUT,
}
"""Kinds of operators by the name that an inline network uses."""

_WITH_GIVEN_HEADROOM = ("aurora", "baseline", "ctrl")
_MAX_PERIODS = 20_000_000
"""More periods would take hours of wall time; a period of 1 ns is a typing error."""


class OperatorSpec(ScenarioPart):
    """One operator of an inline network."""

    name: str = Field(description="any name that no other operator has")
    kind: str = Field(description="source, select, project, aggregate, join or output")
    cost_s: Seconds = Field(alias="cost", description="CPU time one tuple takes, e.g. 500us")
    selectivity: float = Field(1.0, description="tuples out for a tuple in, e.g. 0.9")
    inputs: tuple[str, ...] = Field((), description="names of operators that come before it, e.g. [source]")
    window_s: Seconds | None = Field(None, alias="window", description="range of a join's windows, e.g. 1s")
    probe_cost_s: Seconds | None = Field(
        None,
        alias="probe_cost",
        description="CPU time a join takes for each tuple it compares with, e.g. 5us",
    )
    weight: float = Field(1.0, description="share of a scheduling turn; 1 is normal")
    label: str = Field("all", description="group under which an output's delays are reported")

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        if kind not in KINDS:
            raise UnknownNameError("an operator's kind", kind, KINDS)
        return kind

    @model_validator(mode="after")
    def _sane(self) -> OperatorSpec:
        # Beyond these the kernel's buffers are too small for a single turn; NaN is in no range.
        for name, value in (("selectivity", self.selectivity), ("weight", self.weight)):
            if not 0 <= value <= 100:
                raise InvalidInputError(
                    f"operator {self.name}: {name} must lie between 0 and 100", value, "1 is usual"
                )
        return self

    def operator(self) -> Operator:
        return Operator(
            self.name,
            KINDS[self.kind],
            self.cost_s,
            self.selectivity,
            self.inputs,
            window_s=self.window_s or 0.0,
            probe_cost_s=self.probe_cost_s or 0.0,
            weight=self.weight,
            label=self.label,
        )


class HeadroomStep(ScenarioPart):
    """The part of the CPU that queries get from a moment on."""

    from_s: Seconds = Field(alias="from", description="when it changes, e.g. 100s; the first at 0s")
    fraction: float = Field(description="part of the CPU that queries get, e.g. 0.5 beside a background job")


class Scenario(ScenarioPart):
    """A simulation: a network, its input, the machine, and the load manager in charge."""

    name: str = Field("scenario", description="what to call it")
    network: Annotated[
        Annotated[str, Tag("name")] | Annotated[tuple[OperatorSpec, ...], Tag("operators")],
        Discriminator(lambda value: "name" if isinstance(value, str) else "operators"),
    ] = Field("flat", description=f"{', '.join(NETWORKS)}, or a list of operators")
    workload: Annotated[
        AnyWorkload, BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value)
    ] = Field(SR(), description="{kind: s_r}, or another kind with its settings")
    delay_target_s: Seconds = Field(2.0, alias="delay_target", description="e.g. 2s")
    manager: str = Field("deadline", description="the load manager")
    manager_settings: dict[str, Any] = Field({}, description="{headroom: 0.97}, see docs/policies.md")
    period_s: Seconds | None = Field(None, alias="period", description="time between decisions, e.g. 500ms")
    duration_s: Seconds | None = Field(None, alias="duration", description="length of the run, e.g. 400s")
    headroom: Annotated[
        Annotated[float, Tag("fraction")] | Annotated[tuple[HeadroomStep, ...], Tag("steps")],
        Discriminator(lambda value: "steps" if isinstance(value, list | tuple) else "fraction"),
    ] = Field(PHAM_HEADROOM, description="0.985, or steps: [{from: 0s, fraction: 0.985}]")
    cost_trace: bool = Field(False, description="true lets the cost of a row change as in tu2006 fig. 14")
    seed: int = Field(0, description="0, 1, 2, ...")
    dry_run: bool = Field(False, description="true decides and logs but sheds nothing")

    @field_validator("network")
    @classmethod
    def _known_network(cls, network: str | tuple[OperatorSpec, ...]) -> str | tuple[OperatorSpec, ...]:
        if isinstance(network, str) and network not in NETWORKS:
            raise UnknownNameError("network", network, NETWORKS)
        return network

    @model_validator(mode="after")
    def _checked(self) -> Scenario:
        if not 0 <= self.seed < 2**62:
            raise InvalidInputError("seed must be a whole number, 0 or more", self.seed, "use seed 0")
        times_s = [from_s for from_s, _ in self.headroom_steps]
        if times_s != sorted(set(times_s)):
            raise InvalidInputError("headroom steps must be in order of time", times_s, "sort them by `from`")
        for _, fraction in self.headroom_steps:
            require_positive("headroom", fraction, "the part of the CPU that queries get, e.g. 0.985")
        self.manager_config()
        needed_s = self.built_network.cost_per_row_s() / self.first_headroom
        if self.delay_target_s < needed_s:
            raise InvalidInputError(
                f"the delay target must be longer than one row takes through {self.built_network.name}, "
                f"{needed_s * 1e3:.3g}ms",
                f"{self.delay_target_s * 1e3:.3g}ms",
                "2s suits the networks of the papers",
            )
        return self

    @cached_property
    def built_network(self) -> Network:
        if isinstance(self.network, str):
            return NETWORKS[self.network]()
        return Network(self.name, tuple(spec.operator() for spec in self.network))

    @property
    def headroom_steps(self) -> tuple[tuple[float, float], ...]:
        """(from_s, fraction) of the machine."""
        if isinstance(self.headroom, tuple):
            return tuple((step.from_s, step.fraction) for step in self.headroom)
        return ((0.0, self.headroom),)

    @property
    def first_headroom(self) -> float:
        return self.headroom_steps[0][1] if self.headroom_steps else PHAM_HEADROOM

    def manager_config(self) -> Any:
        """The load manager's configuration; a manager that does not learn the headroom gets the machine's."""
        name = self.manager
        given = {"headroom": self.first_headroom} if name in _WITH_GIVEN_HEADROOM else {}
        settings = {**given, **self.manager_settings}
        return typed_manager_config(name, settings, f"manager_settings of {name}")

    @cached_property
    def arrivals(self) -> Arrivals:
        """When rows arrive at every source."""
        return self.workload.arrivals(self.built_network, self.first_headroom, self.duration_s, self.seed)

    def build(self) -> tuple[SimulatedPlant, Manager[Any, Any]]:
        """A plant at virtual time 0 and its load manager."""
        from penstock.sim.engine.machine import Machine
        from penstock.sim.engine.plant import SimulatedPlant

        arrivals, config = self.arrivals, self.manager_config()
        manager: Manager[Any, Any] = config.build()
        period_s = self.period_s or config.period_s(self.delay_target_s)
        if arrivals.duration_s / period_s > _MAX_PERIODS:
            raise InvalidInputError(
                f"a run must have at most {_MAX_PERIODS} periods",
                f"{arrivals.duration_s / period_s:.3g} of {period_s:g} s",
                "give a longer period or a shorter duration",
            )
        cost = workloads.cost_trace(arrivals.duration_s, seed=self.seed) if self.cost_trace else None
        machine = Machine(
            self.headroom_steps,
            ((0.0, 1.0),)
            if cost is None
            else tuple(zip(cost.times_s.tolist(), cost.factors.tolist(), strict=True)),
        )
        plant = SimulatedPlant(
            self.built_network,
            [arrivals.times_s] * len(self.built_network.sources),
            QueryClass(self.name, self.delay_target_s, manager=self.manager, period_s=self.period_s),
            period_s,
            arrivals.duration_s,
            machine,
            grants=manager.traits.gives_grants,
            seed=self.seed,
        )
        return plant, manager

    def with_manager(self, name: str) -> Scenario:
        """The same scenario, on the very same input, under another load manager with its default settings."""
        _ = self.arrivals  # cached now, so that the copy has the same arrivals
        settings = self.manager_settings if name == self.manager else {}
        other = self.model_copy(update={"manager": name, "manager_settings": settings})
        other.manager_config()
        return other

    def to_config(self) -> dict[str, Any]:
        """The scenario as the values of a scenario file."""
        return self.model_dump(mode="json", by_alias=True)


def load_scenario(path: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Reads a scenario file.

    Args:
        path: A YAML file; `None` for the default scenario.
        overrides: Keys that replace the file's. A workload with a kind replaces the whole workload. Without a
            kind it only changes the scaling; rate_scale and overload replace each other.
    """
    if path is None:
        return parse_scenario(_overridden({}, overrides or {}))
    path = Path(path)
    raw = {"name": path.stem, **read_mapping(path, "scenario", "examples/scenarios")}
    workload = raw.get("workload")
    if isinstance(workload, dict) and isinstance(workload.get("path"), str):
        raw["workload"] = {**workload, "path": str(path.parent / workload["path"])}
    return parse_scenario(_overridden(raw, overrides or {}), str(path))


def parse_scenario(raw: Mapping[str, Any], where: str = "the scenario") -> Scenario:
    """A scenario from plain values; the first mistake is an `InvalidInputError`."""
    return checked(Scenario, raw, where, hint="see docs/policies.md")


def _overridden(raw: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    changed = {**raw, **overrides}
    if overrides.get("manager", raw.get("manager")) != raw.get("manager"):
        changed.pop("manager_settings", None)  # the settings belong to another manager
    scaling = overrides.get("workload")
    if isinstance(scaling, Mapping) and "kind" not in scaling:
        before = raw.get("workload", {"kind": "s_r"})
        before = {"kind": before} if isinstance(before, str) else before
        if not isinstance(before, dict):
            return {**changed, "workload": before}
        dropped = {"rate_scale", "overload"} if {"rate_scale", "overload"} & set(scaling) else set()
        kept = {key: value for key, value in before.items() if key not in dropped}
        changed["workload"] = {**kept, **scaling}
    return changed
