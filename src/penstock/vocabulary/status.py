"""What is going on: every class and query as a control plane sees it at one moment. Frozen.

Figures are cumulative: whoever wants those of a stretch keeps an earlier status and subtracts, so several
watchers do not disturb each other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from penstock.vocabulary.histogram import Delays


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """One governed source of a query. Rows are those of its whole life, from its offset.

    Attributes:
        stream: What it reads.
        offered: Rows whose fate is decided, and those that wait.
        admitted: Rows that were processed.
        shed: Rows that were not, for whatever reason.
        sampled: Of these, by the plan's coins.
        late: Of these, because they would have been over the target.
        expired: Of these, trimmed from the log before they were read.
        poison: Of these, set aside with a grant that failed again and again.
        waiting: Rows that nobody has decided about.
        oldest_waiting_s: Age of the oldest of them.
    """

    stream: str
    offered: int
    admitted: int
    shed: int
    sampled: int
    late: int
    expired: int
    poison: int
    waiting: int
    oldest_waiting_s: float | None


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One streaming query.

    Attributes:
        name: As its user calls it.
        driver: Which Spark application runs it.
        sic: Part of its sources' rows that the results of its last moments stand on.
        sic_batch: The same of its last micro-batch.
        dropped_by_watermark: Rows that Spark dropped as late.
        silent: Streams that sent nothing.
        offered: Rows, as of its readers; so are the next three.
        admitted: See `ReaderStatus`.
        shed: See `ReaderStatus`.
        waiting: See `ReaderStatus`.
        oldest_waiting_s: Age of the oldest row that waits.
        running: Whether it holds a grant.
        tick_due: Whether windows wait for a batch without rows.
        batches: Micro-batches that are done.
        ungoverned: Grants that it gave itself while the control plane was silent.
        shed_reason: Why its class's shedder chose what it chose.
        fixed_s: What a batch costs whatever it holds.
        row_s: What a row adds to it.
        last_stage: The part of a batch's time that is left when its last stage starts.
        readers: By id.
    """

    name: str
    driver: str
    sic: float | None
    sic_batch: float | None
    dropped_by_watermark: float
    silent: tuple[str, ...]
    offered: int
    admitted: int
    shed: int
    waiting: int
    oldest_waiting_s: float | None
    running: bool
    tick_due: bool
    batches: int
    ungoverned: int
    shed_reason: str | None
    fixed_s: float | None
    row_s: float | None
    last_stage: float | None
    readers: Mapping[str, ReaderStatus]


@dataclass(frozen=True, slots=True)
class PastRows:
    """Rows of readers that are gone for good, by the name of their query."""

    readers: int
    offered: int
    admitted: int
    shed: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ClassStatus:
    """One class.

    Attributes:
        target_s: Its delay target.
        priority: Its weight.
        manager: Its load manager.
        dry_run: Whether decisions are recorded and not carried out.
        offered: Rows, over all its queries; so are the next three.
        admitted: See `ReaderStatus`.
        shed: See `ReaderStatus`.
        waiting: See `ReaderStatus`.
        oldest_waiting_s: Age of the oldest row that waits.
        keep_fraction: Part of the rows that the manager keeps now.
        delay: From a row's arrival to the end of its batch.
        result_delay: From a row's arrival to the batch that sends out what it brought about.
        used_s: Batch time that it had.
        share: Its part of the batch time of all classes.
        quota: Its part of the capacity now.
        sic: Mean over its queries.
        jain: Jain's index of its queries' SIC.
        headroom: What its manager believes that it may use.
        reason: Its manager's last one.
        floor_s: The least target that it could meet, by the measured fixed costs.
        needs: What part of the capacity its input asks for.
        feasible: Whether any allocation meets its target.
        least_target_s: The least target that any allocation meets.
        queries: By key.
        past: By name, rows of queries that are gone for good.
        others: How many of its queries are other drivers'; see `own_status`.
    """

    target_s: float
    priority: float
    manager: str
    dry_run: bool
    offered: int
    admitted: int
    shed: int
    waiting: int
    oldest_waiting_s: float | None
    keep_fraction: float
    delay: Delays
    result_delay: Delays
    used_s: float
    share: float | None
    quota: float
    sic: float | None
    jain: float | None
    headroom: float | None
    reason: str | None
    floor_s: float | None
    needs: float | None
    feasible: bool | None
    least_target_s: float | None
    queries: Mapping[str, QueryStatus]
    past: Mapping[str, PastRows] = field(default_factory=dict)
    others: int = 0

    def to_json(self, since: ClassStatus | None = None, bins: bool = True) -> dict[str, Any]:
        """As JSON values, with figures of the stretch since an earlier status of the class."""
        encoded: dict[str, Any] = _plain(self, bins)
        if not self.others:
            del encoded["others"]
        before = since or replace(self, delay=Delays(), result_delay=Delays())
        stretch = self.delay.since(before.delay)
        encoded["delay_since_mark"] = stretch.to_json(bins=False)
        encoded["result_delay_since_mark"] = self.result_delay.since(before.result_delay).to_json(bins=False)
        encoded["admitted_since_mark"] = stretch.count
        return encoded

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> ClassStatus:
        """Also of a report that an older Penstock wrote: what it does not have is not known."""
        known = _known(cls, encoded)
        known["delay"] = Delays.from_json(encoded["delay"])
        known["result_delay"] = Delays.from_json(encoded.get("result_delay", {}))
        known["queries"] = {key: _query(value) for key, value in encoded.get("queries", {}).items()}
        known["past"] = {name: PastRows(**_known(PastRows, v)) for name, v in encoded.get("past", {}).items()}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Status:
    """A control plane at one moment.

    Attributes:
        now_s: Its clock.
        up_s: How long it runs.
        slots: Batches that may run at once.
        shedding: Whether anything is shed at all.
        classes: By name.
        removed: Classes that were taken out while it ran, as they were then.
        marked: Classes as they were when `flow.mark()` was called; for `delay_since_mark` and its kind.
    """

    now_s: float
    up_s: float
    slots: int
    shedding: bool
    classes: Mapping[str, ClassStatus]
    removed: Mapping[str, ClassStatus] = field(default_factory=dict)
    marked: Mapping[str, ClassStatus] = field(default_factory=dict)

    def to_json(self, bins: bool = False) -> dict[str, Any]:
        """As JSON values: what `report.json` and `--json` have; with bins, what a client subtracts."""
        return {
            "now_s": self.now_s,
            "up_s": self.up_s,
            "slots": self.slots,
            "shedding": self.shedding,
            "classes": {n: c.to_json(self.marked.get(n), bins) for n, c in self.classes.items()},
            "removed": {n: c.to_json(None, bins) for n, c in self.removed.items()},
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Status:
        return cls(
            now_s=encoded.get("now_s", 0.0),
            up_s=encoded.get("up_s", 0.0),
            slots=encoded.get("slots", 1),
            shedding=encoded.get("shedding", True),
            classes={name: ClassStatus.from_json(each) for name, each in encoded["classes"].items()},
            removed={n: ClassStatus.from_json(each) for n, each in encoded.get("removed", {}).items()},
        )

    def keys(self) -> list[str]:
        """Goes with the next release, too: for `dict(status)`."""
        return list(self.to_json())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __getitem__(self, key: str) -> Any:
        """`status["classes"]`, as it was before it had types. Goes with the next release."""
        warnings.warn(
            f'status["{key}"] is old: use status.{key}, or status.to_json()["{key}"]',
            DeprecationWarning,
            stacklevel=2,
        )
        return self.to_json()[key]


def _query(encoded: Mapping[str, Any]) -> QueryStatus:
    known = _known(QueryStatus, encoded)
    known["silent"] = tuple(encoded.get("silent", ()))
    readers = encoded.get("readers", {}).items()
    known["readers"] = {name: ReaderStatus(**_known(ReaderStatus, each)) for name, each in readers}
    return QueryStatus(**known)


_UNKNOWN: dict[str, Any] = {"driver": "", "tick_due": False, "dropped_by_watermark": 0.0, "quota": 0.0}


def _known(kind: type[Any], encoded: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a status that JSON has; others are not known."""
    names = [f.name for f in fields(kind)]
    return {
        name: encoded[name] if name in encoded else _UNKNOWN.get(name, 0 if name == "others" else None)
        for name in names
    }


def _plain(value: Any, bins: bool) -> Any:
    """Dataclasses and mappings as JSON values."""
    if isinstance(value, Delays):
        return value.to_json(bins)
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name), bins) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each, bins) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
