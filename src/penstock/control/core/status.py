"""The status of all classes and queries, for hosts, `flow.status()`, the CLI and the closing report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.config.flow import FlowConfig
from penstock.control.core.feasibility import ClassNeeds, feasibility
from penstock.control.state.classes import GovernedClass
from penstock.control.state.query import Gone, Query, QueryCost
from penstock.control.tuning import Tuning
from penstock.grants.offset import Positions
from penstock.policies.quality.fairness import jain_index
from penstock.vocabulary.model import LoadManager
from penstock.vocabulary.moment import Moment
from penstock.vocabulary.status import ClassStatus, PastRows, QueryStatus, ReaderStatus, Status
from penstock.vocabulary.stream_ref import StreamRef

if TYPE_CHECKING:
    from penstock.control.core.classes import Classes
    from penstock.control.core.engine import Engine
    from penstock.control.core.members import Members
    from penstock.control.core.questions import Questions


class Readings:
    """What hosts read of an engine. They know its methods, and not of which parts it consists."""

    config: FlowConfig
    tuning: Tuning
    classes: Classes
    members: Members
    questions: Questions

    def floor_s(self, name: str) -> float | None:
        """The least target that a class could meet, by the measured fixed costs."""
        queries = [q for q in self.members.queries.values() if q.cost.ready and q.readers]
        mine = [q for q in queries if q.cls == name]
        if not mine:
            return None
        # every query of the cluster takes its least turn before a row's own batch runs
        least = self.tuning.least_fixed
        cycle_s = sum(least * q.cost.fixed_s for q in queries)
        return cycle_s + max(least * q.cost.fixed_s + q.cost.idle_s for q in mine)

    # -- of the flow ----------------------------------------------------------------------------

    def config_now(self) -> FlowConfig:
        """The configuration with the changes that were made since the start."""
        classes = {name: self.classes[name].config for name in self.classes}
        return self.config.model_copy(update={"classes": classes})

    def costs(self) -> Mapping[str, QueryCost]:
        """By query whose cost is known, what was learned: for a process that replaces this one."""
        found = {key: query.costs for key, query in self.members.queries.items() if query.cost.ready}
        return {**self.members.remembered, **found}

    def batches_done(self) -> int:
        """How many batches of the queries that are known are complete."""
        return sum(query.turn.batches for query in self.members.queries.values())

    def managers(self) -> dict[str, LoadManager]:
        """By class, its load manager."""
        return {name: governed.cycle.manager for name, governed in self.classes.items()}

    def needed(self) -> list[tuple[str, Positions]]:
        """Stream and position of each reader that is there, or is about to join."""
        return self.members.needed()

    # -- of readers, and of queries by the tokens of their readers ------------------------------

    def has_joined(self, reader: str) -> bool:
        """Whether a reader is there."""
        return reader in self.members.readers

    def is_refused(self, reader: str) -> bool:
        """Whether the query of a reader that has joined gets no more grants: it is being stopped."""
        return self.members.query_of(reader).flags.refused

    def is_being_decided(self, reader: str) -> bool:
        """Whether the query of a reader has won a turn, and its grant waits for rows that are read."""
        return self.has_joined(reader) and self.members.query_of(reader).key in self.questions.pending

    def joined(self) -> Counter[str]:
        """By token, how many readers are there."""
        return Counter(reader.token for reader in self.members.readers.values())

    def queries_of(self, tokens: Collection[str]) -> list[str]:
        """Queries with a reader that has one of some tokens."""
        return [query.key for query in self.members.with_tokens(tokens)]

    def running(self, tokens: Collection[str]) -> list[str]:
        """Those of them that hold a grant."""
        return [query.key for query in self.members.with_tokens(tokens) if query.lease is not None]

    def has_new_grant(self, query: str) -> bool:
        """Whether a query has a grant of which Spark has not planned the micro-batch yet."""
        lease = self.members.queries[query].lease if query in self.members.queries else None
        return lease is not None and lease.is_proposed


def status(engine: Engine, at: Moment) -> Status:
    """Returns the status of every class and query. Row counts come from the readers' offsets.

    So row counts are those of a reader's whole life, also before this control plane began.
    """
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
    """Returns the last status as JSON values, for `report.json`."""
    return {"kind": "spark", **engine.status(at).to_json(bins=True)}


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
        ungoverned=query.ungoverned,
        shed_reason=query.shedding.reason,
        fixed_s=cost.fixed_s if cost.ready else None,
        row_s=cost.row_s if cost.ready else None,
        last_stage=stages.fraction if stages.jobs else None,
        readers=each,
        stuck_s=engine.leases.stuck_s(query, engine.classes.targets_s()[query.cls], at.timer_s),
        stuck_tasks=engine.leases.machines.tasks_on_cores(query),
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
