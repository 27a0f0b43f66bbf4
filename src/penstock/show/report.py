"""A run's status as JSON values, as tables, and as a line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from penstock.policies.quality.fairness import jain_index
from penstock.vocabulary.status import ClassStatus, Status

ROWS = ("offered", "admitted", "shed", "waiting")
ADDED_UP = (*ROWS, "batches", "dropped_by_watermark")


def own_status(status: Status, driver: str, classes: Collection[str]) -> Status:
    """A status as one driver reports it, because a shared control plane also has queries of other drivers.

    Rows, the oldest row and SIC of a class are recomputed from the driver's own queries. A class's delays,
    share, headroom and decision are measured over all queries of the class; `others` says how many of these
    queries belong to other drivers.

    Args:
        status: Result of `flow.status()`.
        driver: Id of the flow.
        classes: The driver's classes; other classes are left out.
    """
    own = {name: _own_class(cls, driver) for name, cls in status.classes.items() if name in classes}
    return replace(status, classes=own)


def _own_class(cls: ClassStatus, driver: str) -> ClassStatus:
    own = {key: query for key, query in cls.queries.items() if query.driver in ("", driver)}
    others = len(cls.queries) - len(own)
    if not others:
        return cls
    ages = [q.oldest_waiting_s for q in own.values() if q.oldest_waiting_s is not None]
    sics = [q.sic for q in own.values() if q.sic is not None]
    return replace(
        cls,
        offered=sum(query.offered for query in own.values()),
        admitted=sum(query.admitted for query in own.values()),
        shed=sum(query.shed for query in own.values()),
        waiting=sum(query.waiting for query in own.values()),
        oldest_waiting_s=max(ages, default=None),
        sic=sum(sics) / len(sics) if sics else None,
        jain=jain_index(np.array(sics)) if sics else None,
        queries=own,
        others=others,
    )


def class_report(status: Status) -> dict[str, dict[str, Any]]:
    """Figures of every class, of a running flow or of `report.json`: rows, SIC, delays against the target."""
    return {name: _class(cls) for name, cls in status.classes.items()}


def _class(cls: ClassStatus) -> dict[str, Any]:
    found, p95_s = cls.to_json(bins=False), cls.delay.stats().p95_s
    kept = ("target_s", "priority", "manager", "dry_run", *ROWS, "oldest_waiting_s", "keep_fraction")
    return {
        **{key: found[key] for key in kept},
        "delay": found["delay"],
        "result_delay": found["result_delay"],
        "p95_to_target": None if p95_s is None else p95_s / cls.target_s,
        **{key: found[key] for key in ("share", "headroom", "floor_s", "sic", "jain")},
        "others": cls.others,
        "in_positions": list(cls.in_positions),
    }


def query_report(status: Status) -> dict[str, dict[str, Any]]:
    """Figures of every query, by the name that its user gave it.

    Rows of several queries with one name are added up; the other figures are those of the last query.
    """
    found: dict[str, dict[str, Any]] = {}
    for cls, values in status.classes.items():
        for query in values.queries.values():
            into = found.setdefault(query.name, {"class": cls, **dict.fromkeys(ADDED_UP, 0)})
            for key in ADDED_UP:
                into[key] += getattr(query, key)
            into |= {key: getattr(query, key) for key in ("fixed_s", "row_s", "sic", "shed_reason")}
            into["silent"] = list(query.silent)
            into["stuck_s"] = max(filter(None, (into.get("stuck_s"), query.stuck_s)), default=None)
            into["in_positions"] = sorted({*into.get("in_positions", ()), *query.in_positions})
    return found


def query_table(queries: Mapping[str, Mapping[str, Any]]) -> Table:
    """A table of the queries' SIC and rows, a line a query; see `query_report`."""
    table = _table("", ("class", "sic", "admitted", "shed", "too late", "silent"), "query")
    table.columns[-1].no_wrap = False  # there may be many streams
    table.caption = (
        "sic: part of its sources' rows that a query's results of the last moments stand on; too late: rows "
        "that Spark's watermark dropped; silent: streams that sent nothing"
    )
    table.caption = _noted(queries, table.caption)
    for name, query in queries.items():
        table.add_row(
            escape(name),
            query["class"],
            _number(query.get("sic")),
            *(f"{query.get(key, 0):,.0f}" for key in ("admitted", "shed", "dropped_by_watermark")),
            escape(", ".join(query.get("silent", ()))) or "-",
        )
    return table


def closing_table(classes: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """The closing report, a line a class; see `class_report`."""
    table = _table(
        title, (*ROWS, "oldest", "target", "mean", "p50", "p95", "p99", "result", "share", "headroom", "sic")
    )
    table.caption = _noted(classes, str(table.caption))
    for name, cls in classes.items():
        delay = cls["delay"]
        table.add_row(
            f"{name} (dry run)" if cls["dry_run"] else name,
            *(f"{cls[key]:,}" for key in ROWS),
            _number(cls["oldest_waiting_s"]),
            f"{cls['target_s']:g}",
            _number(delay["mean_s"]),
            _number(delay["p50_s"]),
            _against(delay["p95_s"], cls["target_s"]),
            _number(delay["p99_s"]),
            _number(cls["result_delay"]["p95_s"]),
            _number(cls["share"]),
            _number(cls["headroom"]),
            _number(cls["sic"]),
        )
    return table


def live_table(status: Status, title: str) -> Table:
    """A table with a line a class; if the status has a mark, "p95 now" counts rows since the mark."""
    now = ("p95 now",) if status.marked else ()
    table = _table(title, ("keep", *ROWS, "oldest", "target", *now, "p95", "share", "sic"))
    reasons = "\n".join(f"{name}: {cls.reason}" for name, cls in status.classes.items())
    table.caption = _noted(
        {
            **{n: {"others": c.others, "in_positions": c.in_positions} for n, c in status.classes.items()},
            **{f"query {name}": {"stuck_s": of["stuck_s"]} for name, of in query_report(status).items()},
        },
        escape(reasons),
    )
    for name, cls in status.classes.items():
        table.add_row(
            name,
            _number(cls.keep_fraction),
            *(f"{getattr(cls, key):,}" for key in ROWS),
            _number(cls.oldest_waiting_s),
            f"{cls.target_s:g}",
            *(_against(_p95_now_s(status, name), cls.target_s) for _ in now),
            _against(cls.delay.stats().p95_s, cls.target_s),
            _number(cls.share),
            _number(cls.sic),
        )
    return table


def status_line(status: Status, at_s: float) -> str:
    """A status as one line, for logs."""
    parts = [
        f"{name}: keep {cls.keep_fraction:.2f}, "
        f"p95 {_number(_p95_now_s(status, name))} of {cls.target_s:g} s, waiting {cls.waiting:,}"
        + (f", with other drivers' queries ({cls.others})" if cls.others else "")
        for name, cls in status.classes.items()
    ]
    return f"{at_s:5.0f} s  {'; '.join(parts)}"


def _p95_now_s(status: Status, cls: str) -> float | None:
    """95th percentile of a class's delays since the mark."""
    if cls not in status.marked:
        return None
    return status.classes[cls].delay.since(status.marked[cls].delay).stats().p95_s


def _noted(reports: Mapping[str, Mapping[str, Any]], caption: str) -> str:
    """A caption that says what figures of classes or queries include, and of what they are.

    Some include queries of other drivers. Of streams with gaps, positions are counted, as upper bounds of
    rows.
    """
    said = [
        escape(f"{name}: delays, share and headroom include other drivers' queries ({report['others']})")
        for name, report in reports.items()
        if report.get("others")
    ]
    said += [
        escape(f"{name}: rows of {', '.join(report['in_positions'])} are positions, some without a row")
        for name, report in reports.items()
        if report.get("in_positions")
    ]
    said += [
        escape(f"{name}: its batch has run for {report['stuck_s']:.0f} s and does not end")
        for name, report in reports.items()
        if report.get("stuck_s")
    ]
    return "\n".join([caption, *said])


def _table(title: str, columns: tuple[str, ...], first: str = "class") -> Table:
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = (
        "target, age of the oldest waiting row and delays in seconds; result: p95 until the answer is sent",
        "left",
    )
    table.add_column(first, style="bold", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _against(value: float | None, target_s: float) -> str:
    if value is None:
        return "-"
    return f"[{'green' if value <= target_s else 'red'}]{value:.2f}[/]"
