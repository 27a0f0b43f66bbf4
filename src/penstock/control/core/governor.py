"""The governor: questions of sources in, grants out. No sockets, no threads; time is passed in.

A question of a query says that its last batch is complete. The answer is a grant (a lease on a slot), or
"nothing yet". See docs/how-it-works, "The life of a grant".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping

from penstock.config.flow import FlowConfig
from penstock.control.backlog.sightings import Sightings
from penstock.control.backlog.waiting import Waiting, cut, left_of, look
from penstock.control.core.booking import book_delays, book_dropped, send_out, shed_line, sic_line
from penstock.control.core.granting import (
    carried,
    lease_of,
    most_rows,
    row_limit,
    same_cut,
    tick_of,
    warn_of_late,
)
from penstock.control.decide.decider import Decider
from penstock.control.decide.observing import ClassPlant
from penstock.control.measure.cost import CostModel
from penstock.control.measure.cost_store import CostMemory
from penstock.control.measure.sic import SicLedger
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.scheduler import Scheduler
from penstock.control.schedule.shares import Redistribution
from penstock.control.schedule.turns import Turns
from penstock.control.shed.class_shedding import Chosen, ClassShedding
from penstock.control.state.classes import GovernedClass, RunRecorder, check_stream, first_scale, govern
from penstock.control.state.guard import Guard
from penstock.control.state.members import Gone, Joining, Lease, Query, Reader, granted_by_itself
from penstock.control.state.past import AWAY_S, QUERIES, Past
from penstock.control.state.sharing import Segments
from penstock.grants.grant import Grant
from penstock.grants.offset import Offset
from penstock.grants.plans import Sampling, ShedPlan, grant_seed, plan_for
from penstock.streams.protocol import StreamLog
from penstock.vocabulary.errors import InvalidInputError, RefusedError, UnknownNameError
from penstock.vocabulary.model import NO_ROWS, Admission
from penstock.vocabulary.status import ClassStatus

_log = logging.getLogger(__name__)


class Governor:
    """Decides whose turn it is and what a grant holds.

    Args:
        config: Classes, slots, dry run.
        clock: Seconds since the epoch, as arrival times are.
        timer: Seconds that never go back, for durations.
        recorder: Gets every step of every class.
        memory: Costs that an earlier process of this driver has learned.
    """

    def __init__(
        self,
        config: FlowConfig,
        clock: Callable[[], float],
        timer: Callable[[], float],
        recorder: RunRecorder | None = None,
        memory: CostMemory | None = None,
    ) -> None:
        self.config, self.clock, self.timer, self.recorder = config, clock, timer, recorder
        self._memory = memory or CostMemory()
        self._sightings, self._guard = Sightings(clock, timer), Guard(timer)
        self.capacity = Redistribution(
            config.capacity.build_policy(), list(config.query_classes().values()), every=1
        )
        self.turns = Turns(self.capacity.shares)
        self.classes: dict[str, GovernedClass] = {}
        for name, cls in config.classes.items():
            plant = ClassPlant(cls.query_class(name), timer())
            self.classes[name] = govern(name, cls, plant, recorder, config.dry_run, config.seed)
            plant.capacity_scale = first_scale(cls, self.capacity.claims[name])
        self.queries: dict[str, Query] = {}
        self.readers: dict[str, Reader] = {}
        self.forbidden: dict[str, tuple[str, str, str]] = {}
        """By token or reader, the error that its next question gets: rule, got, hint."""
        self.windowed: set[str] = set()
        """Tokens of queries whose answers are windows that the watermark closes."""
        self.segments = Segments()
        self.sic = SicLedger(config.stw_s)
        self.paths = Paths(self.queries, self.sic.writers)
        self._shedding = ClassShedding(self.sic, self.paths, self.clock, timer)
        self.past = Past()
        self.removed: dict[str, ClassStatus] = {}
        """By class that was taken out while it ran, its last status."""
        self.shedding = True
        self._scheduler = Scheduler(
            self.classes,
            self.queries,
            self.turns,
            self.capacity,
            config.slots,
            config.capacity.batches == "eager",
            self._look,
            self._age_s,
            timer,
            self.paths,
            self._guard,
        )
        self._divided_s = timer()
        self._decider = Decider(
            self.classes,
            self.queries,
            self.paths,
            self._look,
            self._scheduler.turn_of,
            self.clock,
            timer,
            self._guard,
        )
        self.started_s = self._last_s = timer()
        self._grants = 0

    def _age_s(self, arrival_s: float) -> float:
        """How old a row is, by when it counts as arrived."""
        return max(0.0, self.clock() - arrival_s)

    # -- members --------------------------------------------------------------------------------

    def join(self, joining: Joining, log: StreamLog, connection: object, offset: Offset) -> Reader:
        """A reader's planner has connected, with the offset at which it stands."""
        cls, key = joining.cls, joining.query
        governed = self.governed(cls)
        self.check_read(str(log.directory), cls)
        query = self.queries.get(key)
        if query is not None and query.cls != cls:
            raise InvalidInputError(
                f"query {joining.name} has one class",
                f"{query.cls} and {cls}",
                "give all its readers one class",
            )
        if query is None:
            query = self.queries[key] = Query(key, joining.name, cls, CostModel(), driver=joining.driver)
            self._memory.recall(query)
        elif not query.readers:
            query.begins_again(joining.driver)
        for other in query.readers.values():
            if joining.slot and other.slot == joining.slot and other.id != offset.reader:
                raise InvalidInputError(
                    f"the readers of flow.query({joining.name!r}) are used in one streaming query",
                    "a second one was started from them",
                    "call flow.query with another name for it",
                )
        check_stream(governed.config, log, [other.log for other in query.readers.values()])
        ends = {p: log.end(p) for p in range(log.partitions)}
        seen = self.readers[offset.reader].seen_end if offset.reader in self.readers else ends
        reader = Reader(
            offset.reader, key, joining.slot, joining.token, log, connection, offset, dict(seen), offset
        )
        query.ungoverned += granted_by_itself(
            self.readers.get(reader.id), query.past.pop(reader.id, None), offset
        )
        self.past.comes_back(reader.id)
        # a control plane that was restarted cannot know whether windows wait for a tick; one more is cheap
        query.data_since_tick |= offset.grant > 0 and not offset.tick
        query.readers[reader.id] = self.readers[reader.id] = reader
        self.sic.joined(reader.token, key)
        self.sic.reads(key, reader.id, str(log.directory))
        self.paths.changed()
        return reader

    def share(self, stream: str, cls: str, tokens: Iterable[str] = ()) -> None:
        """A query of a class writes a shared segment: the class owns it, and lower ones may read it.

        Args:
            stream: Where it lies.
            cls: The class.
            tokens: Of the query's readers.
        """
        self.governed(cls)
        self.segments.own(stream, cls, self.reads(), self.priorities)
        self.sic.shares(stream, tokens)
        for reader in self.readers.values():
            self.sic.joined(reader.token, reader.query)
        self.paths.changed()

    def check_read(self, stream: str, cls: str) -> None:
        """Refuses a class that is above the owner of the segment it wants to read."""
        self.governed(cls)
        self.segments.check([(stream, cls)], self.priorities)

    def leave(self, connection: object) -> None:
        """A planner's connection ended: its query holds no slot any more."""
        for reader in [r for r in self.readers.values() if r.connection is connection]:
            del self.readers[reader.id]
            query = self.queries[reader.query]
            del query.readers[reader.id]
            query.past[reader.id] = self._as_it_left(reader)
            self.sic.gone(query.key, reader.id)
            self.paths.changed()
            query.leader = None
            if query.lease is not None:
                _log.info("query %s ended while it held a grant; its slot is free", query.key)
                self._release(query)
            query.left_s = self.timer()
        self._forget_gone()
        self._sightings.keep(str(reader.log.directory) for reader in self.readers.values())

    def _forget_gone(self) -> None:
        """Puts those that are gone for longest into totals: their number has no bound."""
        for query in self.queries.values():
            while len(query.past) > QUERIES:
                oldest = next(iter(query.past))
                self.past.fold(query.cls, query.name, {oldest: query.past.pop(oldest)})
        for name in self.classes:
            gone = [q for q in self.queries.values() if q.cls == name and not q.readers]
            for query in sorted(gone, key=lambda q: q.left_s)[: max(0, len(gone) - QUERIES)]:
                if self.timer() - query.left_s >= AWAY_S:
                    self.past.fold(name, query.name, query.past)
                    self.forget(query)

    def forget(self, query: Query) -> None:
        """Lets go of all that is kept of a query but its rows."""
        del self.queries[query.key]
        tokens = {gone.token for gone in query.past.values()} - {r.token for r in self.readers.values()}
        self.windowed -= tokens
        for name in (*tokens, *query.past):
            self.forbidden.pop(name, None)
        self.sic.forget(query.key, tokens)
        self._shedding.forget(query.key)
        self._scheduler.forget(query.key)
        self._memory.forget(query.key)

    def config_now(self) -> FlowConfig:
        """The configuration with the changes that were made since the start."""
        classes = {name: governed.config for name, governed in self.classes.items()}
        return self.config.model_copy(update={"classes": classes})

    def as_it_is(self, reader: Reader) -> Gone:
        """A reader's books and what waits for it, as if it left now."""
        rows, oldest_s = left_of(reader.log, reader.counted.end, self._sightings.of(reader.log))
        age_s = None if oldest_s is None else self._age_s(oldest_s)
        return Gone(reader.log.name, reader.counted, rows, age_s, reader.token)

    def _as_it_left(self, reader: Reader) -> Gone:
        """The same; where its log cannot be looked at any more, nothing is known to wait."""
        try:
            return self.as_it_is(reader)
        except Exception as error:  # or the slot of its query would be taken for ever
            _log.warning("what waits for reader %s is not known: %r", reader.id, error)
            return Gone(reader.log.name, reader.counted, 0, None, reader.token)

    def _release(self, query: Query) -> None:
        assert query.lease is not None
        self._scheduler.charge(query, query.lease)
        query.granted_s, query.lease = query.lease.began_s, None

    # -- questions ------------------------------------------------------------------------------

    def ask(self, reader_id: str, start: Offset) -> bool:
        """A source asks for its next offset: what its query held before is done, which is said."""
        reader = self.readers[reader_id]
        query = self.queries[reader.query]
        lease, done = query.lease, False
        if lease is not None and reader_id in lease.answered:
            done = True
            if lease.logged or start.grant > reader.offset.grant or lease.replay:
                self._complete(query, lease)
            else:  # proposed, but Spark never ran it: the books ignore it
                self._release(query)
        reader.offset = reader.counted = start
        reader.questions += 1
        query.asked_s = self.timer()
        query.looked_s = -math.inf  # a new question is answered by what waits now
        if query.leader is None:
            query.leader = reader_id
        return done

    def finish(self, reader_id: str, start: Offset) -> None:
        """A reader under AvailableNow is at its end: another of its query's readers opens the next grants."""
        self.ask(reader_id, start)
        reader = self.readers[reader_id]
        query, reader.finished = self.queries[reader.query], True
        if query.leader == reader_id:
            query.leader = None

    def take_all(self, reader_id: str) -> None:
        """A reader's query runs under AvailableNow, which asks for everything there is: nothing is shed."""
        self.queries[self.readers[reader_id].query].draining = True

    def answer(self, reader_id: str) -> Grant | None:
        """The grant for a reader that has asked; `None` when it is not its turn or not worth a batch yet."""
        reader = self.readers[reader_id]
        query = self.queries[reader.query]
        if self.forbidden:  # said once: it ends the query, and the next one may be as it should
            for name in (reader.token, reader.id):
                if name in self.forbidden:
                    raise RefusedError(*self.forbidden.pop(name))
        query.asked_s = self.timer()
        if query.lease is not None:
            return same_cut(query.lease, reader)
        if reader_id != query.leader or query.refused:
            return None
        if reader.slot and reader.questions == 1 and len(query.readers) == 1:
            return None  # Spark asks the query's other readers before it asks again: then they have joined
        turn = self._scheduler.is_next(query)
        if turn is None:
            return None
        self._look(query)
        answer = self._grant(query, reader)
        assert query.lease is not None
        query.lease.spare = turn.spare
        return answer

    def is_leader(self, reader_id: str) -> bool:
        """Whether this reader asks first in its query's micro-batches."""
        return self.queries[self.readers[reader_id].query].leader == reader_id

    def has_new_grant(self, query: str) -> bool:
        """Whether a query has a grant of which Spark has not planned the micro-batch yet."""
        lease = self.queries[query].lease if query in self.queries else None
        return lease is not None and not lease.logged

    def is_refused(self, reader_id: str) -> bool:
        """Whether this reader's query gets no more grants."""
        return self.queries[self.readers[reader_id].query].refused

    def planned(self, reader_id: str, offset: Offset, admitted: int, set_aside: bool = False) -> bool:
        """Spark plans a batch; its tasks come next.

        Without a lease (a batch run again after a restart) it takes a slot first. One that was granted early
        waits until the batch before it has started its last stage.

        Args:
            reader_id: Of which reader.
            offset: Where the batch ends.
            admitted: Rows that its plan admits.
            set_aside: Whether the batch failed too often, and runs without them.

        Returns:
            Whether it may go on; else the source asks again.
        """
        reader = self.readers[reader_id]
        query = self.queries[reader.query]
        if query.lease is None:
            if not self._scheduler.takes_slot_again(query, reader.token):
                return False
            query.lease = Lease(self.timer(), math.inf, {}, {}, replay=True)
            query.lease.answered.update(query.readers)
        lease = query.lease
        if self._scheduler.holds_back(query):
            lease.hold(self.timer())
            return False
        lease.let_go(self.timer())
        if reader_id not in lease.logged:
            lease.answered.add(reader_id)
            lease.logged.add(reader_id)
            processed = 0 if set_aside else admitted
            lease.admitted += processed
            plant = self.classes[query.cls].plant
            plant.admitted_rows += processed
            plant.shed_rows += max(0, offset.rows - admitted)
            stream = str(reader.log.directory)
            rows, batch = offset.rows, query.batches
            self.sic.decided(self.timer(), query.key, reader_id, stream, rows, processed, offset.grant, batch)
        reader.offset = reader.counted = offset
        query.data_since_tick &= not offset.tick
        return True

    def _complete(self, query: Query, lease: Lease) -> None:
        took_s = lease.ran_s(self.timer())
        self._release(query)
        query.done_s = self.timer()
        query.batches += 1
        plant, now_s = self.classes[query.cls].plant, self.timer()
        send_out(plant, query, now_s)
        if lease.replay:
            query.data_since_tick |= lease.admitted > 0
        elif lease.admitted:
            book_delays(plant, query, lease, now_s)
            if not any(reader.token in self.windowed for reader in query.readers.values()):
                send_out(plant, query, now_s)
        query.noted.append(sic_line(query, lease, self.sic.of(query.key, now_s), self.clock()))
        if self.recorder is not None:
            self.recorder.record_sic(query.noted[-1])
        if lease.replay:  # it began without a question, in a query that was only starting
            return
        query.cost.learn(lease.admitted, took_s)
        query.tail.learn(lease, self.timer())
        query.largest_rows = max(query.largest_rows, lease.admitted)

    def dropped(self, batch: int, rows: Mapping[tuple[str, int], float]) -> None:
        """Spark has reported on a micro-batch; where its watermark dropped admitted rows as late, SIC falls.

        Args:
            batch: Spark's number of it.
            rows: By reader and number of its grant. Those of readers that are gone are not booked.
        """
        found = (q for q in self.queries.values() if any(r in q.readers or r in q.past for r, _ in rows))
        query = next(found, None)
        if query is None:
            return
        there = {key: count if key[0] in self.readers else 0.0 for key, count in rows.items()}
        line = book_dropped(self.sic, query, batch, there, self.timer())
        if line is not None and self.recorder is not None:
            self.recorder.record_sic(line)

    # -- what waits -----------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Connected queries that hold a grant, or have rows or windows left to work off."""
        return [
            q.key
            for q in self.queries.values()
            if q.readers and (q.lease is not None or q.data_since_tick or self._look(q).rows)
        ]

    def _look(self, query: Query) -> Waiting:
        open_readers = [reader for reader in query.readers.values() if not reader.finished]
        readers = {reader.id: (reader.log, reader.positions) for reader in open_readers}
        query.waiting = look(readers, lambda s: self._sightings.of(self.readers[s.reader].log)(s))
        query.looked_s = self.timer()
        plant, rows = self.classes[query.cls].plant, 0
        for reader in open_readers:
            for p, end in query.waiting.ends[reader.id].items():
                new = max(0, end - reader.seen_end.get(p, 0))
                if new:
                    self.sic.came(query.key, reader.id, query.looked_s)
                rows += new
                reader.seen_end[p] = max(end, reader.seen_end.get(p, 0))
        plant.came(query.key, rows)
        query.came(rows, self.timer(), plant.cls.delay_target_s / 2)
        return query.waiting

    # -- grants ---------------------------------------------------------------------------------

    def _grant(self, query: Query, reader: Reader) -> Grant:
        assert query.waiting is not None
        governed, waiting = self.classes[query.cls], query.waiting
        if waiting.oldest_s is None:
            query.data_since_tick = False
            query.lease = tick_of(waiting, self.timer(), self.clock())
            query.lease.answered.add(reader.id)
            return Grant(dict(reader.positions), {}, carried(reader), tick=True)
        turn = self._scheduler.turn(query)
        grant = self._decider.grant(query, waiting, turn, self.shedding)
        decided, chosen = cut(waiting, grant, row_limit(query, turn)), None
        if self.shedding and not query.draining:
            chosen = self._choose(governed, query, grant)
        if chosen is not None:
            decided = chosen.cut
            query.shed_reason = chosen.decision.reason
            if self.recorder is not None:
                line = shed_line(query, str(governed.config.shedder), chosen, self.clock())
                self.recorder.record_shedding(line)
        target_s = governed.plant.cls.delay_target_s
        warn_of_late(query, self._age_s(waiting.oldest_s), target_s, decided.late_rows)
        plan = self._plan(governed, query, grant.keep_fraction)
        query.lease = lease_of(waiting, decided, grant, plan, self.timer(), self.clock())
        query.lease.planned_s = max(turn.length_s, query.cost.fixed_s)
        if chosen is not None:
            query.lease.plans = chosen.plans
            query.lease.planned_s = query.cost.batch_s(chosen.rows)
        return same_cut(query.lease, reader) or Grant(dict(reader.positions), {}, carried(reader), tick=True)

    def _choose(self, governed: GovernedClass, query: Query, grant: Admission) -> Chosen | None:
        """What the class's shedder keeps of a query; `None` where it has no word in it."""
        others = [q for q in self.queries.values() if q.cls == query.cls and q.readers and q is not query]
        turn, most = self._scheduler.turn_of(query.cls), most_rows(query)
        return self._guard.call(
            f"class {query.cls}: its shedder {governed.config.shedder}",
            lambda: self._shedding.choose(governed, query, others, grant, turn, most),
            lambda _: None,
            "rows are sampled as the manager says",
        )

    def _plan(self, governed: GovernedClass, query: Query, keep: float) -> ShedPlan:
        self._grants += 1
        sampling: Sampling = governed.config.sampling
        # a cohort of keys is meant to last; rows and segments are drawn anew in every grant
        seed = self.config.seed if sampling == "key" else grant_seed(self.config.seed, self._grants)
        buckets = min(reader.log.key_buckets for reader in query.readers.values())
        return plan_for(keep, sampling, seed, buckets)

    # -- the periodic part ----------------------------------------------------------------------

    def beat(self) -> None:
        """Called every few hundredths of a second: busy time, and decisions of managers with a period."""
        now = self.timer()
        passed_s, self._last_s = now - self._last_s, now
        self._memory.beat(self.queries, now)
        self._scheduler.beat(passed_s)
        if now - self._divided_s >= self._divide_every_s():
            self.divide()
        for name, governed in self.classes.items():
            queries = [q for q in self.queries.values() if q.cls == name and q.readers]
            if any(q.lease is not None or (q.waiting is not None and q.waiting.rows) for q in queries):
                governed.plant.busy_s += passed_s
            governed.plant.work_s += passed_s * sum(q.lease is not None for q in queries)
            if not governed.traits.gives_grants and queries and self._is_due(governed, now):
                self._decider.step(governed, None, NO_ROWS, None)

    def _is_due(self, governed: GovernedClass, now: float) -> bool:
        """A decision on a period in which no batch ended would be one on nothing."""
        wait_s = now - governed.plant.last_s
        return wait_s >= governed.period_s and wait_s >= self._scheduler.turn_of(governed.name).cycle_s

    def divide(self) -> None:
        """Divides the time between the classes anew."""
        since_s, self._divided_s = self.timer() - self._divided_s, self.timer()
        scales = self._guard.call(
            f"capacity policy {self.config.capacity.policy}",
            lambda: self._scheduler.redistribute(since_s),
            lambda _: {},
            "the classes keep the shares they have",
        )
        for name, scale in scales.items():
            self.classes[name].plant.capacity_scale *= scale

    def _divide_every_s(self) -> float:
        """A load-management cycle is about a quarter of a target (pham2016 6.2.1); a redistribution, one."""
        shortest_s = min(governed.plant.cls.delay_target_s for governed in self.classes.values())
        return self.config.capacity.every_s or shortest_s / 4

    # -- looking --------------------------------------------------------------------------------

    def floor_s(self, name: str) -> float | None:
        """The least target that a class could meet, by the measured fixed costs."""
        return self._scheduler.floor_s(name)

    def governed(self, name: str) -> GovernedClass:
        if name not in self.classes:
            raise UnknownNameError("class", name, self.classes)
        return self.classes[name]

    @property
    def priorities(self) -> dict[str, float]:
        return {name: governed.config.priority for name, governed in self.classes.items()}

    def reads(self) -> list[tuple[str, str]]:
        """Streams that are read, and by queries of which class."""
        return [(str(r.log.directory), self.queries[r.query].cls) for r in self.readers.values()]
