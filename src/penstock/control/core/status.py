"""What is going on, as JSON values: for `flow.status()`, the CLI, and the closing report. Decides nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from penstock.control.core.feasibility import plan
from penstock.control.core.governor import Governor
from penstock.control.state.classes import GovernedClass
from penstock.control.state.members import Gone, Query
from penstock.policies.quality.fairness import jain_index

PLANNED = ("needs", "feasible", "least_target_s")
"""What of the plan is in the status: whether any allocation meets a class's target, and which it could."""


def status(governor: Governor) -> dict[str, Any]:
    """Every class and query as it is now. Rows are those of the readers' whole lives, from their offsets."""
    total_s, plans = sum(governor.turns.used_s.values()), plan(governor)["classes"]
    classes = {
        name: {**_class(governor, governed, total_s), **{key: plans[name][key] for key in PLANNED}}
        for name, governed in governor.classes.items()
    }
    return {
        "now_s": governor.clock(),
        "up_s": governor.timer() - governor.started_s,
        "slots": governor.config.slots,
        "shedding": governor.shedding,
        "classes": classes,
        "removed": governor.removed,
    }


def closing_report(governor: Governor) -> dict[str, Any]:
    """The last status, as `report.json` keeps it."""
    return {"kind": "spark", **status(governor)}


def _class(governor: Governor, governed: GovernedClass, total_s: float) -> dict[str, Any]:
    plant, name = governed.plant, governed.name
    queries = {q.key: _query(governor, q) for q in governor.queries.values() if q.cls == name}
    decision = plant.decision
    used_s = governor.turns.used_s[name]
    gone = {label: totals.to_json() for label, totals in governor.past.of(name).items()}
    counted = [*queries.values(), *gone.values()]
    rows = {key: sum(each[key] for each in counted) for key in ("offered", "admitted", "shed", "waiting")}
    ages = [q["oldest_waiting_s"] for q in queries.values() if q["oldest_waiting_s"] is not None]
    sics = [q["sic"] for q in queries.values() if q["sic"] is not None]
    return {
        "target_s": plant.cls.delay_target_s,
        "priority": governed.config.priority,
        "manager": governed.config.manager,
        "dry_run": governed.cycle.dry_run,
        **rows,
        "oldest_waiting_s": max(ages, default=None),
        "keep_fraction": plant.keep_fraction,
        "delay": asdict(plant.delays.stats()),
        "delay_since_mark": asdict(plant.marked.stats()),
        "result_delay": asdict(plant.results.stats()),
        "result_delay_since_mark": asdict(plant.results_marked.stats()),
        "admitted_since_mark": plant.marked.stats().count,
        "used_s": used_s,
        "share": used_s / total_s if total_s > 0 else None,
        "quota": governor.capacity.shares[name],
        "sic": sum(sics) / len(sics) if sics else None,
        "jain": jain_index(np.array(sics)) if sics else None,
        "headroom": decision.headroom if decision is not None else None,
        "reason": decision.reason if decision is not None else None,
        "floor_s": governor.floor_s(name),
        "queries": queries,
        "past": gone,
    }


def _query(governor: Governor, query: Query) -> dict[str, Any]:
    cost = query.cost
    each = {
        **{name: _reader(gone) for name, gone in query.past.items()},
        **{reader.id: _reader(governor.as_it_is(reader)) for reader in query.readers.values()},
    }
    ages = [r["oldest_waiting_s"] for r in each.values() if r["oldest_waiting_s"] is not None]
    sic = governor.sic.of(query.key, governor.timer())
    return {
        "name": query.name,
        "driver": query.driver,
        "sic": sic.value,
        "sic_batch": sic.batch,
        "dropped_by_watermark": query.dropped,
        "silent": [Path(stream).name for stream in sic.silent],
        **{key: sum(r[key] for r in each.values()) for key in ("offered", "admitted", "shed", "waiting")},
        "oldest_waiting_s": max(ages, default=None),
        "running": query.lease is not None,
        "tick_due": query.data_since_tick,
        "batches": query.batches,
        "ungoverned": query.ungoverned,
        "shed_reason": query.shed_reason,
        "fixed_s": cost.fixed_s if cost.ready else None,
        "row_s": cost.row_s if cost.ready else None,
        "last_stage": query.tail.fraction if query.tail.jobs else None,
        "readers": each,
    }


def _reader(reader: Gone) -> dict[str, Any]:
    books = reader.offset.books
    return {
        "stream": reader.stream,
        "offered": books.offered + reader.waiting,
        "admitted": books.admitted,
        "shed": books.shed,
        "sampled": books.sampled,
        "late": books.late,
        "expired": books.expired,
        "poison": books.poison,
        "waiting": reader.waiting,
        "oldest_waiting_s": reader.oldest_s,
    }
