"""What drivers report of their batches and executors, taken in by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.core import events as ev
from penstock.control.core.instructions import Recorded
from penstock.control.cores.machines import Job
from penstock.control.state.query import Query

if TYPE_CHECKING:
    from penstock.control.core.engine import Engine


def take_in(engine: Engine, report: ev.DriverReport) -> None:
    """Takes a driver's report in."""
    match report:
        case ev.LastStageStarted():
            _last_stage(engine, report)
        case ev.JobEnded():
            _job_ended(engine, report)
        case ev.CoresChanged():
            _cores_changed(engine, report)
        case ev.TasksSeen():
            _tasks_seen(engine, report)
        case ev.BatchReported():
            _batch_reported(engine, report)
        case other:
            raise TypeError(f"nobody takes in {other!r}")


def _last_stage(engine: Engine, report: ev.LastStageStarted) -> None:
    """A batch has started its last stage, so another batch may take the cores that it leaves."""
    query = _query_of(engine, report.tokens)
    if query is not None and query.lease is not None:
        query.lease.start_last_stage(report.at.timer_s, report.batch)
        engine.questions.changed()
        engine.retry_plans(report.at)


def _job_ended(engine: Engine, report: ev.JobEnded) -> None:
    """A job's tasks have ended, and it is known what they took. The batch may have ended before."""
    query = _query_of(engine, report.tokens)
    if query is not None:
        now_s = report.at.timer_s
        job = Job(report.batch, report.tasks, report.core_s, now_s - report.ready_ago_s)
        engine.leases.machines.end_job(query, job, now_s)
        engine.table.changed(query.key)
        engine.questions.changed()
        engine.retry_plans(report.at)


def _query_of(engine: Engine, tokens: frozenset[str]) -> Query | None:
    """The query that a report is about; queries made from one DataFrame cannot be told apart."""
    queries = engine.members.with_tokens(tokens)
    return queries[0] if len(queries) == 1 else None


def _cores_changed(engine: Engine, report: ev.CoresChanged) -> None:
    """A driver has more cores or fewer, so the machine second of all queries is another one."""
    if not engine.leases.cores_changed(report.driver, report.cores, report.at.timer_s):
        return
    for query in engine.members.queries.values():
        query.costs.run_on(engine.leases.machines.cores_for(query))
    engine.table.everything_changed()
    engine.questions.changed()
    engine.retry_plans(report.at)


def _tasks_seen(engine: Engine, report: ev.TasksSeen) -> None:
    """Some batches take longer than expected, and still hold cores."""
    queries = {_query_of(engine, tokens): tasks for tokens, tasks in report.running.items()}
    running = {query.key: tasks for query, tasks in queries.items() if query is not None}
    if engine.leases.machines.seen(report.driver, running):
        engine.questions.changed()


def _batch_reported(engine: Engine, report: ev.BatchReported) -> None:
    """Spark has reported on a batch; where its watermark dropped admitted rows as late, SIC falls."""
    query = engine.members.known_by({reader for reader, _ in report.dropped})
    if query is None:
        return
    there = {key: count if key[0] in engine.members.readers else 0.0 for key, count in report.dropped.items()}
    line = engine.ledger.reported(query, report.batch, there, report.at.timer_s)
    if line is not None:
        engine.out.add(Recorded(line))
