"""What is going on, for `flow.status()`, the CLI and the closing report. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.control.core.feasibility import ClassNeeds, feasibility
from penstock.control.state.classes import GovernedClass
from penstock.control.state.query import Gone, Query
from penstock.policies.quality.fairness import jain_index
from penstock.vocabulary.moment import Moment
from penstock.vocabulary.status import ClassStatus, PastRows, QueryStatus, ReaderStatus, Status
from penstock.vocabulary.stream_ref import StreamRef

if TYPE_CHECKING:
    from penstock.control.core.engine import Engine


def status(engine: Engine, at: Moment) -> Status:
    """Every class and query as it is now. Rows are those of the readers' whole lives, from their offsets."""
    total_s, needs = sum(engine.scheduler.turns.used_s.values()), feasibility(engine).classes
    return Status(
        now_s=at.wall_s,
        up_s=at.timer_s - engine.classes.started_s,
        slots=engine.config.slots,
        shedding=engine.granting.on,
        classes={
            name: _class(engine, governed, total_s, needs[name], at)
            for name, governed in engine.classes.items()
        },
        removed=dict(engine.classes.removed),
    )


def closing_report(engine: Engine, at: Moment) -> dict[str, Any]:
    """The last status, as `report.json` keeps it."""
    return {"kind": "spark", **status(engine, at).to_json(bins=True)}


def _class(
    engine: Engine, governed: GovernedClass, total_s: float, needs: ClassNeeds, at: Moment
) -> ClassStatus:
    plant, name = governed.plant, governed.name
    mine = (q for q in engine.members.queries.values() if q.cls == name)
    queries = {q.key: _query(engine, q, at) for q in mine}
    gone = {label: PastRows(**totals.to_json()) for label, totals in engine.members.past.of(name).items()}
    counted: list[QueryStatus | PastRows] = [*queries.values(), *gone.values()]
    ages = [q.oldest_waiting_s for q in queries.values() if q.oldest_waiting_s is not None]
    sics = [q.sic for q in queries.values() if q.sic is not None]
    decision, used_s = plant.decision, engine.scheduler.turns.used_s[name]
    return ClassStatus(
        target_s=plant.cls.delay_target_s,
        priority=governed.config.priority,
        manager=governed.config.manager,
        dry_run=governed.cycle.dry_run,
        offered=sum(each.offered for each in counted),
        admitted=sum(each.admitted for each in counted),
        shed=sum(each.shed for each in counted),
        waiting=sum(each.waiting for each in counted),
        oldest_waiting_s=max(ages, default=None),
        keep_fraction=plant.keep_fraction,
        delay=plant.delays.so_far(),
        result_delay=plant.results.so_far(),
        used_s=used_s,
        share=used_s / total_s if total_s > 0 else None,
        quota=engine.classes.capacity.shares[name],
        sic=sum(sics) / len(sics) if sics else None,
        jain=jain_index(np.array(sics)) if sics else None,
        headroom=decision.headroom if decision is not None else None,
        reason=decision.reason if decision is not None else None,
        floor_s=engine.floor_s(name),
        needs=needs.needs,
        feasible=needs.feasible,
        least_target_s=needs.least_target_s,
        queries=queries,
        past=gone,
    )


def _query(engine: Engine, query: Query, at: Moment) -> QueryStatus:
    cost, results, stages = query.cost, query.results, query.costs.last_stages
    each = {
        **{name: _reader(gone) for name, gone in query.past.items()},
        **{reader.id: _reader(engine.as_it_is(reader, at)) for reader in query.readers.values()},
    }
    ages = [r.oldest_waiting_s for r in each.values() if r.oldest_waiting_s is not None]
    sic = engine.ledger.sic.of(query.key, at.timer_s)
    return QueryStatus(
        name=query.name,
        driver=query.identity.driver,
        sic=sic.value,
        sic_batch=sic.batch,
        dropped_by_watermark=results.dropped,
        silent=tuple(StreamRef(stream).name for stream in sic.silent),
        offered=sum(r.offered for r in each.values()),
        admitted=sum(r.admitted for r in each.values()),
        shed=sum(r.shed for r in each.values()),
        waiting=sum(r.waiting for r in each.values()),
        oldest_waiting_s=max(ages, default=None),
        running=query.lease is not None,
        tick_due=query.turn.windows_wait,
        batches=query.turn.batches,
        ungoverned=results.ungoverned,
        shed_reason=results.shed_reason,
        fixed_s=cost.fixed_s if cost.ready else None,
        row_s=cost.row_s if cost.ready else None,
        last_stage=stages.fraction if stages.jobs else None,
        readers=each,
    )


def _reader(reader: Gone) -> ReaderStatus:
    books = reader.offset.books
    return ReaderStatus(
        stream=reader.stream,
        offered=books.offered + reader.waiting,
        admitted=books.admitted,
        shed=books.shed,
        sampled=books.sampled,
        late=books.late,
        expired=books.expired,
        poison=books.poison,
        waiting=reader.waiting,
        oldest_waiting_s=reader.oldest_s,
        dense=reader.dense,
    )
