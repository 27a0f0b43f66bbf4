"""The status of a control plane: every class and query at one moment. Frozen.

Figures are cumulative. A watcher who wants figures of a time span keeps an earlier status and subtracts it.
So several watchers do not disturb each other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from penstock.vocabulary.histogram import Delays


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """One governed source of a query. Counts of rows are over the reader's whole life, from its offset.

    Penstock counts positions. Unless the stream is dense, some positions have no row, and the counts of rows
    are upper bounds.

    Attributes:
        stream: The stream that it reads.
        offered: Rows that were admitted, shed or wait.
        admitted: Rows that were processed.
        shed: Rows that were not processed, for whatever reason.
        sampled: Rows shed by a plan.
        late: Rows shed because they would have completed after the target.
        expired: Rows shed because they were trimmed from the log before they were read.
        poison: Rows shed with a grant that failed again and again and was set aside.
        waiting: Rows that no grant has decided about yet.
        oldest_waiting_s: Age of the oldest waiting row.
        dense: Whether each position of the stream has a row.
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
    dense: bool = True


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One streaming query.

    Attributes:
        name: The name that the user gave the query.
        driver: The Spark application that runs the query.
        sic: Fraction of its sources' rows on which the query's recent results are based.
        sic_batch: The same fraction for the query's last micro-batch.
        dropped_by_watermark: Rows that Spark dropped as late.
        silent: Streams that sent nothing.
        offered: Rows, summed over the query's readers; so are the next three.
        admitted: See `ReaderStatus`.
        shed: See `ReaderStatus`.
        waiting: See `ReaderStatus`.
        oldest_waiting_s: Age of the oldest waiting row.
        running: Whether the query holds a grant.
        tick_due: Whether windows wait for a batch without rows.
        batches: Number of micro-batches that are done.
        ungoverned: Number of grants that sources made themselves while the control plane was silent.
        shed_reason: Why the class's shedder chose these rows.
        fixed_s: Time of a batch whatever it holds.
        row_s: Time that a row adds to a batch.
        last_stage: Fraction of a batch's time that is left when its last stage starts.
        readers: Readers by id.
        stuck_s: How long the query's batch has run, if that is many times the target; else `None`.
        stuck_tasks: How many tasks of that batch hold cores, if the driver says so.
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
    stuck_s: float | None = None
    stuck_tasks: int | None = None

    @property
    def in_positions(self) -> tuple[str, ...]:
        """Streams of which positions are counted, because some positions have no row."""
        return tuple(sorted({reader.stream for reader in self.readers.values() if not reader.dense}))


@dataclass(frozen=True, slots=True)
class PastRows:
    """Counts of rows of readers that will not come back, for one name of a query."""

    readers: int
    offered: int
    admitted: int
    shed: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ClassStatus:
    """One class.

    Attributes:
        target_s: The class's delay target.
        priority: The class's weight.
        manager: The class's load manager.
        dry_run: Whether decisions are recorded and not carried out.
        offered: Rows, summed over the class's queries; so are the next three.
        admitted: See `ReaderStatus`.
        shed: See `ReaderStatus`.
        waiting: See `ReaderStatus`.
        oldest_waiting_s: Age of the oldest waiting row.
        keep_fraction: Fraction of the rows that the manager keeps now.
        delay: Delays from a row's arrival to the end of its batch.
        result_delay: Delays from a row's arrival to the batch that sends out the row's results.
        used_s: Batch time that the class used.
        share: The class's fraction of the batch time of all classes.
        quota: The class's fraction of the capacity now.
        sic: Mean SIC of the class's queries.
        jain: Jain's index of the queries' SIC.
        headroom: The manager's estimate of the headroom.
        reason: Reason of the manager's last decision.
        floor_s: The least target that the class could meet, by the measured fixed costs.
        needs: Fraction of the capacity that the class's input needs.
        feasible: Whether any allocation meets the class's target.
        least_target_s: The least target that any allocation meets.
        queries: Queries by key.
        past: By name, rows of queries that will not come back.
        others: How many of the class's queries belong to other drivers; see `own_status`.
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

    @property
    def in_positions(self) -> tuple[str, ...]:
        """Streams of its queries of which positions are counted, because some positions have no row."""
        return tuple(sorted({name for query in self.queries.values() for name in query.in_positions}))

    def to_json(self, since: ClassStatus | None = None, bins: bool = True) -> dict[str, Any]:
        """The status as JSON values, with figures of the time since an earlier status of the class."""
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
        """The status from JSON values, also of an older Penstock's report; fields it lacks are not known."""
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
        now_s: Time of the control plane's clock.
        up_s: How long the control plane has been running.
        slots: Number of batches that may run at once, or `auto`.
        shedding: Whether rows may be shed at all (the kill switch).
        classes: Classes by name.
        removed: Classes that were removed while the control plane ran, as they were then.
        marked: Classes as they were when `flow.mark()` was called, for figures such as `delay_since_mark`.
    """

    now_s: float
    up_s: float
    slots: int | str
    shedding: bool
    classes: Mapping[str, ClassStatus]
    removed: Mapping[str, ClassStatus] = field(default_factory=dict)
    marked: Mapping[str, ClassStatus] = field(default_factory=dict)

    def to_json(self, bins: bool = False) -> dict[str, Any]:
        """The status as JSON values, as in `report.json` and `--json`; with bins, as a client needs it."""
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
        """The status from JSON values, also of an older Penstock's report; fields it lacks are not known."""
        return cls(
            now_s=encoded.get("now_s", 0.0),
            up_s=encoded.get("up_s", 0.0),
            slots=encoded.get("slots", 1),
            shedding=encoded.get("shedding", True),
            classes={name: ClassStatus.from_json(each) for name, each in encoded["classes"].items()},
            removed={n: ClassStatus.from_json(each) for n, each in encoded.get("removed", {}).items()},
        )

    def keys(self) -> list[str]:
        """Keys for `dict(status)`. Will be removed in the next release, too."""
        return list(self.to_json())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __getitem__(self, key: str) -> Any:
        """`status["classes"]`, as before the status had types. Will be removed in the next release."""
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


_UNKNOWN: dict[str, Any] = {
    "driver": "",
    "tick_due": False,
    "dropped_by_watermark": 0.0,
    "quota": 0.0,
    "dense": True,
}


def _known(kind: type[Any], encoded: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a status that JSON has; other fields are not known."""
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
