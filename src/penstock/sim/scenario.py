"""Scenarios: what to simulate, from a YAML file or from Python, checked before anything runs.

A mistake is one `InvalidInputError` that names the key, where it stands, and the nearest known one.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from penstock.errors import InvalidInputError, UnknownNameError, require_positive
from penstock.model import QueryClass
from penstock.policies.load import LOAD_MANAGERS, Manager, manager_config
from penstock.sim import workloads
from penstock.sim.network import Kind, Network, Operator
from penstock.sim.networks import PHAM_HEADROOM, borealis, qn_complex, qn_flat, qn_long
from penstock.sim.traces import Arrivals
from penstock.sim.workload_specs import SR, WORKLOADS, AnyWorkload, Level, Part, Seconds, capacity_per_s

if TYPE_CHECKING:
    from penstock.sim.engine import SimulatedPlant

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
"""What an operator of an inline network can be called."""

_TOLD_THE_HEADROOM = ("aurora", "baseline", "ctrl")
_MAX_PERIODS = 20_000_000
"""Hours of wall time; a period of 1 ns is a slip of the keyboard."""


class OperatorSpec(Part):
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


class HeadroomStep(Part):
    """The part of the CPU that queries get from a moment on."""

    from_s: Seconds = Field(alias="from", description="when it changes, e.g. 100s; the first at 0s")
    fraction: float = Field(description="part of the CPU that queries get, e.g. 0.5 beside a background job")


class Scenario(Part):
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
        """The load manager's configuration; those that do not learn the headroom are told the machine's."""
        name = self.manager
        told = {"headroom": self.first_headroom} if name in _TOLD_THE_HEADROOM else {}
        settings = {**told, **self.manager_settings}
        known = {f.name for f in fields(LOAD_MANAGERS[name])} if name in LOAD_MANAGERS else set()
        default = manager_config(name, **{key: None for key in settings if key not in known})
        try:
            # pydantic checks the types, which the dataclass takes as they come
            return TypeAdapter(type(default)).validate_python(settings)
        except ValidationError as error:
            raise _as_invalid_input(error, f"manager_settings of {name}") from None

    @cached_property
    def arrivals(self) -> Arrivals:
        """When rows arrive at every source."""
        return self.workload.arrivals(self.built_network, self.first_headroom, self.duration_s, self.seed)

    def build(self) -> tuple[SimulatedPlant, Manager[Any, Any]]:
        """A plant at virtual time 0 and its load manager."""
        from penstock.sim.engine import SimulatedPlant
        from penstock.sim.machine import Machine

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
            grants=manager.gives_grants,
            seed=self.seed,
        )
        return plant, manager

    def with_manager(self, name: str) -> Scenario:
        """The same scenario, on the very same input, under another load manager with its default settings."""
        _ = self.arrivals  # the copy takes what is cached along
        settings = self.manager_settings if name == self.manager else {}
        other = self.model_copy(update={"manager": name, "manager_settings": settings})
        other.manager_config()
        return other

    def to_config(self) -> dict[str, Any]:
        """The scenario as a scenario file has it."""
        return self.model_dump(mode="json", by_alias=True)


def load_scenario(path: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Reads a scenario file.

    Args:
        path: A YAML file; `None` for the default scenario.
        overrides: Keys that replace the file's. A workload with a kind replaces the whole workload; without
            one it changes how that is scaled, and rate_scale and overload displace each other.
    """
    if path is None:
        return parse_scenario(_overridden({}, overrides or {}))
    path = Path(path)
    raw = {"name": path.stem, **_read_mapping(path)}
    workload = raw.get("workload")
    if isinstance(workload, dict) and isinstance(workload.get("path"), str):
        raw["workload"] = {**workload, "path": str(path.parent / workload["path"])}
    return parse_scenario(_overridden(raw, overrides or {}), str(path))


def parse_scenario(raw: Mapping[str, Any], where: str = "the scenario") -> Scenario:
    """A scenario from plain values; the first mistake is an `InvalidInputError`."""
    try:
        return Scenario.model_validate(raw)
    except ValidationError as error:
        raise _as_invalid_input(error, where, Scenario) from None


def _overridden(raw: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    changed = {**raw, **overrides}
    if overrides.get("manager", raw.get("manager")) != raw.get("manager"):
        changed.pop("manager_settings", None)  # they were another manager's
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


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        raise InvalidInputError("the scenario file must exist", repr(str(path)), "check the path") from None
    except OSError as error:
        raise InvalidInputError(
            "the scenario file must be readable", f"{str(path)!r}: {error.strerror}", "check the path"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(getattr(error, "problem", None) or error).split())[:100]
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise InvalidInputError(
            "a scenario file must be YAML", f"{what} in {str(path)!r}{line}", "see examples/scenarios"
        ) from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise InvalidInputError(
            "a scenario file must be a mapping of keys to values",
            f"{reprlib.repr(raw)} in {str(path)!r}",
            "write lines such as `manager: deadline`",
        )
    return {str(key): value for key, value in raw.items()}


_RULES = {
    "missing": "is required",
    "extra_forbidden": "is not a key of a scenario",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "dataclass_type": "must be a mapping of keys to values",
}
"""pydantic's errors in our words; what is not here keeps pydantic's."""


def _as_invalid_input(
    error: ValidationError, where: str, root: type[Part] | None = None
) -> InvalidInputError:
    """The most telling of pydantic's errors as rule, value and hint on one line."""
    errors = error.errors(include_url=False)
    # A misspelt key is often missing under its right name too: the misspelling is the cause.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    kind, location, got = first["type"], list(first["loc"]), first["input"]
    if kind == "union_tag_invalid":
        return UnknownNameError(f"{where}: workload.kind", str(first["ctx"]["tag"]), WORKLOADS)
    part = root
    if root is not None and location and location[0] in ("workload", "network", "headroom"):
        part, location = _part_at(location)
    keys = {} if part is None else {f.alias or name: f for name, f in part.model_fields.items()}
    *outer, last = [str(step) for step in location] or ["it"]
    if kind == "extra_forbidden":
        return UnknownNameError(
            f"a key of {', '.join([where, '.'.join(outer)] if outer else [where])}", last, keys
        )
    if kind == "union_tag_not_found":
        return InvalidInputError(f"{where}: {last}.kind is required", reprlib.repr(got), ", ".join(WORKLOADS))
    rule = _RULES.get(kind, first["msg"])
    hint = keys[last].description if last in keys else None
    got = "nothing" if kind == "missing" else reprlib.repr(got)
    return InvalidInputError(
        f"{where}: {'.'.join([*outer, last])} {rule}", got, hint or "see docs/policies.md"
    )


def _part_at(location: list[int | str]) -> tuple[type[Part], list[int | str]]:
    """What a key is looked up in, and its location without the tag that pydantic gives a union's branch."""
    name, *inner = location
    if not inner:
        return Scenario, location
    tag, *inner = inner
    if "levels" in inner[:-1]:
        part: type[Part] = Level
    elif name == "workload":
        part = WORKLOADS.get(str(tag), Scenario)
    else:
        part = OperatorSpec if tag == "operators" else HeadroomStep
    return part if inner else Scenario, [name, *inner]
