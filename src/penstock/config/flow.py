"""What `attach` is given: classes with their targets and priorities, where the log lies, who controls.

log: logs                        # directory of the streams; relative to the file
streams: {orders: "grpc://host:8815/orders"}
classes:
  gold: {target: 2s, priority: 6}
  silver: {target: 8s, shed: {by: window, size: 2s}}
  bulk: {target: 30s, manager: aloma, settings: {headroom: 0.7}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from penstock.config.mistakes import (
    Part,
    Seconds,
    as_invalid_input,
    checked,
    placing,
    read_mapping,
    refused,
    unknown_name,
)
from penstock.config.old_keys import OLD, say_old_capacity
from penstock.config.old_shedding import SILENT, old_keys, renewed, renewed_classes, say_old, with_shed
from penstock.config.places import Directory, Name, Place, StreamPlace
from penstock.config.shed_settings import SampleSettings, ShedSettings
from penstock.config.shedding import AnyShed
from penstock.grants.plans.sampling import Sampling
from penstock.policies.capacity import CAPACITY_POLICIES, CapacityPolicy, capacity_policy
from penstock.policies.load import LOAD_MANAGERS, Manager, manager_config
from penstock.policies.quality.sic import STW_S
from penstock.policies.shedding import Shedder
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.model import QueryClass

HINT = "see docs/ and examples/pipelines"

_SOCKET_PATH_BYTES = 107
"""Linux's sun_path has 108 with its closing zero; a longer one fails only when the socket is bound."""


def typed_manager_config(name: str, settings: Mapping[str, Any], where: str) -> Any:
    """A load manager's configuration from plain values: the names of its settings and their types checked."""
    known = {f.name for f in fields(LOAD_MANAGERS[name])} if name in LOAD_MANAGERS else set()
    default = manager_config(name, **{key: None for key in settings if key not in known})
    try:
        # pydantic checks the types, which the dataclass takes as they come
        return TypeAdapter(type(default)).validate_python(dict(settings))
    except ValidationError as error:
        raise as_invalid_input(error, where) from None


class ClassConfig(Part):
    """One class: what its queries are promised, and how its load is managed."""

    target_s: Seconds = Field(alias="target", description="the delay target, e.g. 2s")
    priority: float = Field(1.0, gt=0, description="weight of its share of the time, e.g. 6, 3, 1")
    manager: str = Field("deadline", description="the load manager")
    manager_settings: dict[str, Any] = Field(
        {}, alias="settings", description="the manager's, e.g. {headroom: 0.7}"
    )
    shed: AnyShed = Field(
        SampleSettings(), description="what is shed, e.g. sample, key, or {by: window, size: 2s}"
    )
    shed_lane: bool = Field(False, description="true keeps what is shed for a backfill")
    poison_after: int | None = Field(
        None, ge=1, description="set a grant aside after so many failures, e.g. 3"
    )
    lendable_fraction: float = Field(
        1.0, ge=0, le=1, description="part of its own share that it lends at most, e.g. 0.5"
    )
    borrow_limit_fraction: float = Field(
        1.0, ge=0, le=1, description="part of the whole capacity that it borrows at most, e.g. 0.3"
    )
    min_keep_fraction: float = Field(0.0, ge=0, le=1, description="never keep less than this part, e.g. 0.05")
    dry_run: bool = Field(False, description="true decides and logs but sheds nothing")

    @field_validator("manager")
    @classmethod
    def _known_manager(cls, manager: str) -> str:
        if manager not in LOAD_MANAGERS:
            raise unknown_name(manager, LOAD_MANAGERS)
        return manager

    @model_validator(mode="before")
    @classmethod
    def _renewed(cls, raw: object, info: ValidationInfo) -> object:
        return renewed(raw, info, "a class's ")

    @model_validator(mode="after")
    def _buildable(self) -> ClassConfig:
        with placing("settings"):
            self._check_settings()
        self._check_shed()
        with placing("settings"):
            self.manager_config()
        return self

    def _check_settings(self) -> None:
        known = {f.name for f in fields(LOAD_MANAGERS[self.manager])} - {"victims"}
        for key in self.manager_settings:
            if key not in known:
                raise UnknownNameError(f"a setting of {self.manager}", key, known)

    def _check_shed(self) -> None:
        if self.shed.victims == "oldest" and self.manager != "deadline":
            raise refused(
                "must not shed the oldest rows of each query under another manager than deadline",
                f"{self.shed} under {self.manager}",
                "write shed: {by: oldest, within: class}, or leave manager out",
                "shed",
            )
        self.shed.check_target(self.target_s)

    def query_class(self, name: str) -> QueryClass:
        """The class as the control plane knows it."""
        return QueryClass(
            name,
            self.target_s,
            self.priority,
            self.manager,
            lendable_fraction=self.lendable_fraction,
            borrow_limit_fraction=self.borrow_limit_fraction,
        )

    def manager_config(self) -> Any:
        """The load manager's configuration."""
        return typed_manager_config(self.manager, self.settings, self.manager)

    @property
    def settings(self) -> dict[str, Any]:
        """The manager's settings, with the one that says what is shed where that is the manager's part."""
        oldest = {"victims": "oldest"} if self.shed.victims == "oldest" else {}
        return {**self.manager_settings, **oldest}

    @property
    def sampling(self) -> Sampling:
        """What a coin is tossed for in each query."""
        return self.shed.sampling

    @property
    def shedder(self) -> str | None:
        """What chooses over all its queries; `None` where each query sheds by itself."""
        return self.shed.shedder

    def build_shedder(self, seed: int) -> Shedder | None:
        """Builds the class's shedder, if it has one, with the seed of its coins."""
        return self.shed.build_shedder(seed)

    @property
    def headroom_given(self) -> bool:
        """Whether the user told the manager its headroom; else it is that of the class."""
        return self.manager_config().traits().headroom_setting in self.manager_settings

    @property
    def sheds_by_key(self) -> bool:
        """Whether its streams must declare a key."""
        return self.sampling == "key" or self.shed.traits.chooses == "keys"

    def changed(self, changes: Mapping[str, Any], where: str = "the class") -> ClassConfig:
        """The class with some keys changed while it runs.

        Another manager has its own settings. It sheds a sample where the class shed the oldest rows of each
        query, which is Deadline's part.
        """
        alias = {name: field.alias or name for name, field in type(self).model_fields.items()}
        new = {alias.get(key, key): value for key, value in changes.items()}
        present: ShedSettings = self.shed
        if new.get("manager", self.manager) != self.manager:
            present, new = present.under_any_manager(), {"settings": {}, **new}
        if old := old_keys(new, self.manager):
            try:
                new = with_shed(new, present, self.manager)
            except ValidationError as error:
                raise as_invalid_input(error, where, type(self), HINT) from None
        values = {**self.model_dump(by_alias=True), "shed": present, **new}
        config = checked(type(self), values, where, hint=HINT)
        if old:
            say_old(old, f"{where}: ", config.shed)
        return config

    def build_manager(self) -> Manager[Any, Any]:
        """A fresh load manager."""
        manager: Manager[Any, Any] = self.manager_config().build()
        return manager


Classes = Annotated[dict[Name, ClassConfig], BeforeValidator(renewed_classes)]
"""Classes by name; what is said of their old keys has the name, too."""


class CapacityConfig(Part):
    """How the classes divide the capacity."""

    policy: str = Field("dilos", description="dilos, cqc, absolute, hybrid or strict")
    every_s: Seconds | None = Field(
        None, alias="every", description="how often it is divided anew; none: a quarter of the least target"
    )
    reserve_fraction: float | None = Field(
        None, ge=0, le=1, description="old: leave it out", json_schema_extra=OLD
    )
    batches: Literal["full", "eager"] | None = Field(
        None, description="old: leave it out", json_schema_extra=OLD
    )

    @model_validator(mode="before")
    @classmethod
    def _says_old(cls, raw: object, info: ValidationInfo) -> object:
        say_old_capacity(raw, info)
        return raw

    @model_serializer(mode="wrap")
    def _without_old(self, others: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = others(self)
        for name in ("reserve_fraction", "batches"):
            if values.get(name, ...) is None:  # another process would take it for written
                del values[name]
        return values

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        if policy not in CAPACITY_POLICIES:
            raise unknown_name(policy, CAPACITY_POLICIES)
        return policy

    def build_policy(self) -> CapacityPolicy:
        """The policy; fixed quotas (cqc) have no reserve."""
        if self.policy == "cqc" or self.reserve_fraction is None:
            return capacity_policy(self.policy)
        return capacity_policy(self.policy, reserve_fraction=self.reserve_fraction)


FlowT = TypeVar("FlowT", bound="Governing")


def _slots(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused("must be auto or a whole number", repr(value), "auto runs as many as the cores can use")
    if value < 1:
        raise refused("must be auto, or at least 1", value, "auto runs as many as the cores can use")
    return value


Slots = Annotated[int | Literal["auto"], BeforeValidator(_slots)]


class Governing(Part):
    """What flows and pipelines share: classes, their control plane, where the log lies."""

    log: Directory = Field(description="the directory of the stream logs, e.g. logs")
    run: Directory | None = Field(None, description="the directory of this run's record, e.g. runs/today")
    record_mb: int = Field(
        256, ge=0, description="megabytes of each file of the record that are kept, the newest; 0 keeps all"
    )
    classes: Classes = Field(min_length=1, description="{gold: {target: 2s, priority: 6}}")
    capacity: CapacityConfig = Field(CapacityConfig(), description="{policy: dilos, every: 1s}")
    slots: Slots = Field(
        "auto", description="micro-batches that may run at once: auto for what the cores can use, or a number"
    )
    dry_run: bool = Field(False, description="true decides and logs but sheds nothing, in all classes")
    address: str | None = Field(None, description="unix:///path of a shared control plane; none starts one")
    fail_open_after_s: Seconds = Field(
        5.0, alias="fail_open_after", description="silence after which a source goes on by itself, e.g. 5s"
    )
    read_from: Place | None = Field(
        None, description="where executors read the log: grpc://host:port, or a directory; none: as `log`"
    )
    trim: bool = Field(False, description="true removes rows that every registered reader is past")
    stw_s: Seconds = Field(
        STW_S, alias="stw", description="the source time window over which SIC is reported, e.g. 10s"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="of the samples: 0, 1, 2, ...")

    @field_validator("address")
    @classmethod
    def _unix_socket(cls, address: str | None) -> str | None:
        if address is None:
            return None
        path = address.removeprefix("unix://")
        if path == address or not path.startswith("/"):
            raise refused(
                "must be unix:// and an absolute path", repr(address), "leave it out to start a control plane"
            )
        if len(path.encode()) > _SOCKET_PATH_BYTES:
            raise refused(
                f"must have a path of at most {_SOCKET_PATH_BYTES} bytes",
                repr(address),
                "use a shorter directory",
            )
        return address

    def query_classes(self) -> dict[str, QueryClass]:
        """The classes as the control plane knows them."""
        return {name: config.query_class(name) for name, config in self.classes.items()}

    @property
    def most_slots(self) -> int | None:
        """How many micro-batches may run at once; `None`: as many as the cores can use."""
        return None if self.slots == "auto" else self.slots

    @property
    def record_bytes(self) -> int | None:
        """How many bytes of each file of the record are kept; `None` for all."""
        return self.record_mb * 1_000_000 or None

    def is_dry(self, cls: str) -> bool:
        """Whether a class sheds nothing, by its own switch or by the flow's."""
        return self.dry_run or self.classes[cls].dry_run

    def to_json(self) -> str:
        """The configuration for another process; `from_json` gives an equal one."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_json(cls: type[FlowT], text: str) -> FlowT:
        """The configuration that `to_json` wrote."""
        try:
            return cls.model_validate_json(text, context=SILENT)
        except ValidationError as error:
            raise as_invalid_input(error, "the configuration", cls, HINT) from None


class FlowConfig(Governing):
    """The classes that share a Spark application, their control plane and their streams."""

    streams: dict[Name, StreamPlace] = Field(
        {}, description="streams that lie elsewhere, e.g. {orders: grpc://host:port/orders}"
    )


def load_flow_config(config: str | Path | Mapping[str, Any] | FlowConfig) -> FlowConfig:
    """The configuration of a flow from a YAML file, plain values, or one that is ready.

    Relative paths become absolute, from the file's directory, or from the working directory.
    """
    if isinstance(config, FlowConfig):
        return config
    return load_config(FlowConfig, config, "flow")


def load_config(
    model: type[FlowT],
    config: str | Path | Mapping[str, Any],
    what: str,
    changes: Mapping[str, Any] | None = None,
) -> FlowT:
    """Reads and checks a configuration.

    Args:
        model: What it is to become.
        config: A file, or plain values.
        what: Its name in errors.
        changes: Values that replace the file's, by dotted key.
    """
    if isinstance(config, Mapping):
        return checked(model, dict(config), f"the {what}", Path.cwd(), HINT)
    if not isinstance(config, str | Path):
        raise InvalidInputError(
            f"a {what} is a file, a mapping or a configuration", repr(config)[:60], "give a path"
        )
    path = Path(config)
    raw = read_mapping(path, what, "examples/pipelines")
    for key, value in (changes or {}).items():
        put(raw, key, value)
    return checked(model, raw, str(path), path.absolute().parent, HINT)


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Puts a value at a dotted key; what is wrong about the key is said when the whole is checked."""
    *outer, last = key.split(".")
    at: Any = raw
    for step in outer:
        at = at.setdefault(step, {})
        if not isinstance(at, dict):
            raise InvalidInputError(f"{step} of {key} is a mapping", repr(at)[:60], "see the file")
    at[last] = value
