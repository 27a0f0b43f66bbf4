"""The control plane's engine: what happens goes in as events, what is to be done comes out as instructions.

No sockets, no threads, no clock, no files: a host brings events with their moments and carries instructions
out. A question of a query says that its last batch is complete. The answer is a grant (a lease on a slot), or
"nothing yet". See docs/how-it-works.md, "The life of a grant".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.config.flow import FlowConfig
from penstock.control.backlog.backlog import Backlog
from penstock.control.backlog.row_values import RowsNeededError
from penstock.control.core import commands, driver_reports
from penstock.control.core import events as ev
from penstock.control.core.classes import Classes
from penstock.control.core.feasibility import FeasibilityReport, FeasibilityWatch, feasibility
from penstock.control.core.granting import Granting, PendingGrant, carried_plan, tick_terms
from penstock.control.core.instructions import (
    FetchRows,
    GrantIssued,
    Instruction,
    MayProceed,
    NothingYet,
    Outbox,
    Recorded,
    Refused,
)
from penstock.control.core.leases import Early, LeaseBook, early
from penstock.control.core.members import Members
from penstock.control.core.questions import Questions
from penstock.control.core.status import Readings, status
from penstock.control.decide.decider import Decider
from penstock.control.measure.ledger import Ledger
from penstock.control.measure.sic import SicLedger
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.scheduler import Scheduler, Verdict
from penstock.control.schedule.snapshot import Snapshot
from penstock.control.schedule.table import QueryTable
from penstock.control.shed.class_shedding import ClassShedding
from penstock.control.state.classes import check_stream
from penstock.control.state.guard import Guard
from penstock.control.state.lease import Outcome, Terms
from penstock.control.state.query import Gone, Query, QueryCost, Reader
from penstock.control.tuning import TUNING, Tuning
from penstock.grants.grant import Grant
from penstock.vocabulary.moment import Moment
from penstock.vocabulary.status import Status

_log = logging.getLogger(__name__)


class Engine(Readings):
    """Decides whose turn it is and what a grant holds.

    Args:
        config: Classes, slots, dry run.
        at: Now.
        costs: By query, what an earlier process of the control plane learned.
        tuning: Figures.
    """

    def __init__(
        self,
        config: FlowConfig,
        at: Moment,
        costs: Mapping[str, QueryCost] | None = None,
        tuning: Tuning = TUNING,
    ) -> None:
        self.config, self.tuning = config, tuning
        self.out, self.members, self.backlog, guard = Outbox(), Members(), Backlog(), Guard()
        self.classes = Classes(config, at, guard, self.out, tuning)
        self.ledger = Ledger(SicLedger(config.stw_s), tuning)
        paths = Paths(self.members.queries, self.ledger.sic.writers)
        self.table = QueryTable(paths, tuning)
        self.leases = LeaseBook(config.most_slots, self.scheduler.turns, tuning)
        self.granting = Granting(
            config,
            Decider(paths, guard, tuning),
            ClassShedding(self.ledger.sic, paths, tuning),
            guard,
            self.out,
            tuning,
        )
        self.questions = Questions(tuning)
        self.members.remembered.update(costs or {})
        self._feasibility = FeasibilityWatch()

    @property
    def scheduler(self) -> Scheduler:
        """Whose turn it is, and who has used how much."""
        return self.classes.scheduler

    # -- in and out -----------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> Sequence[Instruction]:
        """Takes in something that happened; returns what is to be done.

        Raises:
            InvalidInputError: Somebody wants what a rule forbids; nothing was changed.
        """
        had_s = self.leases.pass_time(event.at.timer_s)
        self.classes.pass_time(event.at, self.leases.held.values(), had_s)
        if self.leases.stop_preferring(event.at.timer_s):
            self.questions.changed()
        match event:
            case ev.Asked():
                self._asked(event)
            case ev.BatchPlanned():
                self._planned(event)
            case ev.RowsArrived():
                self.backlog.arrived(event.stream, event.new, event.at)
                self.table.rows_arrived(event.stream)
                self.questions.rows_arrived()
                if self.questions.blocked:
                    # what waits for a slot is decided when the host wakes the engine: rows of other streams,
                    # found in the same look, come right after these
                    return self.out.take()
            case ev.QuestionEnded():
                self._question_ended(event)
            case ev.DriverReport():
                driver_reports.take_in(self, event)
            case ev.Fetched():
                self._fetched(event)
            case ev.ReaderExpected():
                self.members.expected[event.connection] = event.stream, event.positions
            case ev.ReaderJoined():
                self._joined(event)
            case ev.ReaderFinished():
                self._finished(event)
            case ev.ConnectionEnded():
                self._left(event)
            case ev.Commanded():
                commands.carry_out(self, event.command, event.at)
            case ev.Woke() if self._decides_periodically(event.at):
                return self.out.take()
            case ev.Woke():
                pass
            case other:
                raise TypeError(f"nobody handles {other!r}")
        # one decision an event: a host that records it knows the manager as it was right after it
        if self.questions.is_due(event.at.timer_s):
            self._grant_next(event.at)
        return self.out.take()

    def due_s(self) -> float:
        """On the timer, when the engine wants to be woken if nothing happens until then."""
        return min(self.questions.due_s, self.classes.due_s, *self.leases.replays_until_s())

    # -- who is there ---------------------------------------------------------------------------

    def _joined(self, event: ev.ReaderJoined) -> None:
        who, stream = event.who, event.stream
        self.members.expected.pop(event.connection, None)
        governed = self.classes.governed(who.cls)
        self.members.check_read(stream.id, who.cls, self.classes.priorities)
        query = self.members.queries.get(who.query)
        others = [] if query is None else [reader.stream for reader in query.readers.values()]
        check_stream(governed.config, stream, others)
        reader = self.members.join(event)
        query = self.members.queries[who.query]
        query.costs.run_on(self.leases.machines.cores_for(query))
        self.ledger.sic.joined(reader.token, who.query)
        self.ledger.sic.reads(who.query, reader.id, stream.id)
        self.table.everything_changed()
        self._refresh(query, event.at)
        self.questions.changed()

    def _left(self, event: ev.ConnectionEnded) -> None:
        """A planner's connection ended: its query holds no slot any more."""
        readers, now_s = self.members.of_connection(event.connection), event.at.timer_s
        classes = {self.members.queries[reader.query].cls for reader in readers}
        self.members.expected.pop(event.connection, None)
        for reader in readers:
            query = self.members.queries[reader.query]
            self.members.leave(reader, self.as_it_is(reader, event.at), now_s)
            self.ledger.sic.gone(query.key, reader.id)
            self.questions.gone(query, reader.id, now_s)
            self.leases.plans.pop(reader.id, None)
            self.leases.stop_waiting(query, now_s)
            self.leases.give_up(query)
            if query.lease is not None:
                _log.info("query %s ended while it held a grant; its slot is free", query.key)
                self.leases.end(query, Outcome.LOST, now_s)
        forgotten = self.members.gone_for_good(self.classes, now_s)
        for query in forgotten:
            self.forget(query)
        if not readers and not forgotten:
            return
        for cls in classes:
            left = [r for query in self.members.of_class(cls) for r in query.readers.values()]
            self.granting.shedding.forget_values(cls, left)
        self.table.everything_changed()
        self._keep_tails()
        self.questions.changed()
        self.retry_plans(event.at)

    def forget(self, query: Query) -> None:
        """Lets go of all that is kept of a query but its rows."""
        tokens = self.members.forget(query)
        self.ledger.sic.forget(query.key, tokens)
        self.granting.shedding.forget(query.key)
        self.leases.forget(query.key)

    def as_it_is(self, reader: Reader, at: Moment) -> Gone:
        """A reader's books and what waits for it, as if it left now."""
        rows, oldest_s = self.backlog.left_of(reader.stream.id, reader.counted.end, at)
        age_s = None if oldest_s is None else at.age_s(oldest_s)
        return Gone(reader.stream.name, reader.counted, rows, age_s, reader.token, reader.stream.dense)

    def _keep_tails(self) -> None:
        self.backlog.keep(self.members.needed())

    # -- the life of a grant --------------------------------------------------------------------

    def _asked(self, event: ev.Asked) -> None:
        """A source asks for its next offset: what its query held before is over."""
        reader = self.members.readers[event.reader]
        query = self.members.queries[reader.query]
        self.table.changed(query.key)
        self._ends_with_question(query, reader, event)
        if event.takes_all:
            query.flags.drain(True)
        leads = self.questions.put(query, reader, event.at.timer_s)
        if (refusal := self.members.refusal(reader)) is not None:
            self.questions.withdrawn(query)
            self.out.add(Refused(reader.id, refusal))
        elif query.lease is not None and (grant := query.lease.answer(reader.id, reader.positions)):
            self.questions.answered(query, event.at.timer_s)
            self.out.add(GrantIssued(reader.id, grant))
        elif not leads or self._waits_for_others(query, reader):
            if leads:
                self.questions.withdrawn(query)
            self.out.add(NothingYet(reader.id, leads))

    @staticmethod
    def _waits_for_others(query: Query, reader: Reader) -> bool:
        """Whether Spark asks the query's other readers before it asks again: then they have joined."""
        return bool(reader.slot) and reader.questions == 1 and len(query.readers) == 1

    def _ends_with_question(self, query: Query, reader: Reader, event: ev.Asked | ev.ReaderFinished) -> None:
        """The lease that a question ends, if it ends one, is booked."""
        lease, at = query.lease, event.at
        outcome = None if lease is None else lease.outcome(reader.id, reader.offset, event.start)
        if outcome is not None:
            lease = self.leases.end(query, outcome, at.timer_s)
            if outcome.ran:
                plant, windowed = self.classes[query.cls].plant, self.members.has_windows(query)
                line = self.ledger.completed(plant, query, lease, outcome, windowed, at)
                self.out.add(Recorded(line))
            self.questions.changed()
        reader.offset = reader.counted = event.start
        reader.questions += 1
        if outcome is not None:
            self.retry_plans(at)

    def _finished(self, event: ev.ReaderFinished) -> None:
        """A reader under AvailableNow is at its end: another of its query's readers opens the next grants."""
        reader = self.members.readers[event.reader]
        query = self.members.queries[reader.query]
        self.table.changed(query.key)
        self._ends_with_question(query, reader, event)
        reader.finished = True
        self.questions.gone(query, reader.id, event.at.timer_s)

    def _question_ended(self, event: ev.QuestionEnded) -> None:
        if event.reader not in self.members.readers:
            return
        query, now_s = self.members.query_of(event.reader), event.at.timer_s
        self.table.changed(query.key)
        self.leases.plans.pop(event.reader, None)
        self.leases.stop_waiting(query, now_s)
        if query.question.open == event.reader:
            self.questions.answered(query, now_s)
            self.questions.pending.pop(query.key, None)
            self.leases.give_up(query)

    def _planned(self, event: ev.BatchPlanned) -> None:
        """Spark plans a batch. Without a lease (a batch run again after a restart) it takes a slot first.

        A batch that was granted early waits until the batch before it has started its last stage.
        """
        reader = self.members.readers[event.reader]
        query, now_s = self.members.queries[reader.query], event.at.timer_s
        self.table.changed(query.key)
        if query.lease is None:
            if not self.leases.takes_slot_again(query, reader.token, now_s):
                self.leases.plans[event.reader] = event
                return
            self.leases.take(query, Terms(now_s, replay=True)).answered.update(query.readers)
            self.questions.changed()
        lease = query.lease
        assert lease is not None
        if self.leases.holds_back(query):
            lease.hold(now_s)
            self.leases.plans[event.reader] = event
            return
        lease.let_go(now_s)
        self.ledger.planned(self.classes[query.cls].plant, query, lease, event)
        self.leases.machines.plan(query, lease, now_s)
        reader.offset = reader.counted = event.offset
        if event.offset.tick:
            query.turn.close_windows()
        tasks = self.leases.machines.tasks(query, event.reader, event.admitted)
        self.out.add(MayProceed(event.reader, tasks))

    def retry_plans(self, at: Moment) -> None:
        """Batches that could not begin may be able to now."""
        plans, self.leases.plans = self.leases.plans, {}
        for event in plans.values():
            if event.reader in self.members.readers:
                self._planned(
                    ev.BatchPlanned(at, event.reader, event.offset, event.admitted, event.set_aside)
                )

    # -- whose turn it is -----------------------------------------------------------------------

    def _grant_next(self, at: Moment) -> None:
        """Holds a contest, if there is something to win, and grants to the winner if its question is open."""
        now_s, leases, questions = at.timer_s, self.leases, self.questions
        earliest = questions.earliest
        if not leases.is_free(None, earliest, leases.ending(earliest, now_s), now_s):
            questions.block(now_s, leases.frees_in_s(earliest, now_s))
            return
        seen = self.look(at)
        ending = leases.ending(questions.earliest, now_s)
        verdict = self.scheduler.hold_contest(seen, leases.charged(ending), leases.returning(ending), ending)
        questions.judged(verdict)
        winner = verdict.winner
        if winner is None or winner.question.open is None:
            return
        own = early(winner.cost)
        ending = leases.ending(own, now_s)
        if leases.is_free(winner.identity.driver, own, ending, now_s):
            self._grant(verdict, ending, at)
        else:
            questions.block(now_s, leases.frees_in_s(own, now_s))

    def look(self, at: Moment) -> Snapshot:
        """All queries as they are now; rows that arrived since the last look are booked as offered."""
        if not self.table.is_whole:
            there = (query for query in self.members.queries.values() if query.readers)
            self.table.begin_anew(there, self.classes)
        for query in self.table.stale(at.wall_s):
            self._count_new(query, at)
        seen = self.table.look(self.classes.traits(), at, self.leases.rests_s(at.timer_s))
        self.questions.earliest = Early(
            float(seen.fixed_s.max(initial=0.0)), float(seen.before_s.max(initial=0.0))
        )
        self.classes.saw(seen)
        return seen

    def _count_new(self, query: Query, at: Moment) -> None:
        """Looks up what waits for a query, if that may have changed, and books what is new."""
        if self.backlog.refresh(query.backlog, query.wanted, at):
            self.table.changed(query.key)
            self.ledger.arrivals(self.classes[query.cls].plant, query, at)

    def _refresh(self, query: Query, at: Moment) -> None:
        """Brings one query up to date, without the others."""
        self._count_new(query, at)
        memory_s = self.classes[query.cls].plant.cls.delay_target_s * self.tuning.rate_memory
        query.backlog.rates.pass_time(at.timer_s, memory_s, self.tuning)

    def _grant(self, verdict: Verdict, ending: Sequence[Query], at: Moment) -> None:
        query = verdict.winner
        assert query is not None
        busy = {q.cls for q in self.leases.held.values() if q not in ending}
        spare = self.scheduler.begin(verdict, busy, self.leases.charged(ending))
        self.leases.reserve(query)
        self.table.changed(query.key)
        self.questions.changed()
        if query.backlog.waiting.oldest_s is None:
            query.turn.close_windows()
            self._issue(query, tick_terms(query.backlog.waiting, at), at)
            return
        governed, mine = self.classes[query.cls], self.members.of_class(query.cls)
        pending = self.granting.begin(governed, mine, query, verdict.schedule, spare)
        self._finish(pending, at, may_fetch=True)

    def _finish(self, pending: PendingGrant, at: Moment, may_fetch: bool) -> None:
        """Ends what `_grant` began; where a shedder must know rows first, when these are there."""
        query = pending.query
        governed, mine = self.classes[query.cls], self.members.of_class(query.cls)
        try:
            terms = self.granting.finish(pending, governed, mine, at, may_fetch)
        except RowsNeededError as needed:
            self.questions.pending[query.key] = pending, set(needed.fetches)
            for fetch in needed.fetches:
                self.out.add(FetchRows(query.key, fetch))
            return
        self._issue(query, terms, at)

    def _fetched(self, event: ev.Fetched) -> None:
        query = self.members.queries.get(event.query)
        if query is not None and event.values is not None and self._values_are_of_use(query.cls):
            self.granting.take_in(query.cls, event.values)  # also if its question has ended meanwhile
        pending, left = self.questions.pending.get(event.query, (None, set()))
        if pending is None or event.fetch not in left:
            return
        left.discard(event.fetch)
        if not left or event.values is None:
            del self.questions.pending[event.query]
            self._finish(pending, event.at, may_fetch=event.values is not None)

    def _values_are_of_use(self, cls: str) -> bool:
        """Whether a class sheds by values of rows, and has a reader that such rows may wait for."""
        if self.classes[cls].strategy is None:
            return False
        return any(query.readers for query in self.members.of_class(cls))

    def _issue(self, query: Query, terms: Terms, at: Moment) -> None:
        """A query holds a grant from now on, and the reader that asked gets its part of it."""
        assert query.question.open is not None
        self.table.changed(query.key)
        reader = self.members.readers[query.question.open]
        lease = self.leases.take(query, terms)
        grant = lease.answer(reader.id, reader.positions)
        if grant is None:
            grant = Grant(dict(reader.positions), {}, carried_plan(reader), tick=True)
        self.questions.answered(query, at.timer_s)
        self.out.add(GrantIssued(reader.id, grant))

    # -- the periodic part ----------------------------------------------------------------------

    def _decides_periodically(self, at: Moment) -> bool:
        """Divides the time anew where that is due; has one manager decide whose period is over, if any."""
        if self.classes.is_division_due(at):
            self.divide(at)
            self._keep_tails()
        self._feasibility.look(self, at)
        self.leases.name_stuck(self.classes.targets_s(), at.timer_s)
        for name in self.classes.periods_due(at):
            queries = self.members.of_class(name)
            if not any(query.readers for query in queries):
                continue
            schedule = self.scheduler.schedule(self.look(at), name)
            if self.classes.is_cycle_over(name, schedule.turns[name].cycle_s, at):
                self.granting.decider.step(self.classes[name], queries, schedule)
                return True
        return False

    def divide(self, at: Moment) -> None:
        """Divides the time between the classes anew."""
        self.classes.divide(self.look(at), at)
        self.questions.changed()

    # -- looking --------------------------------------------------------------------------------

    def status(self, at: Moment) -> Status:
        """Every class and query as it is now."""
        return status(self, at)

    def plan(self) -> FeasibilityReport:
        """What each class needs and has now."""
        return feasibility(self)

    def unfinished(self, at: Moment) -> list[str]:
        """Connected queries that hold a grant, or have rows or windows left to work off."""
        found = []
        for query in self.members.queries.values():
            if query.readers:
                self._refresh(query, at)
                if query.lease is not None or query.turn.windows_wait or query.backlog.waiting.rows:
                    found.append(query.key)
        return found
