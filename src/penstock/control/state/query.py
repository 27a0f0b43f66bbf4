"""The state of governed readers and queries. Each part of the state is written by one module."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from penstock.control.backlog.backlog import QueryBacklog
from penstock.control.measure.batch_cost import BatchCost, alone, on_cores
from penstock.control.measure.cost import CostModel
from penstock.control.measure.lines import SicLine
from penstock.control.measure.sic import RECENT_BATCHES
from penstock.control.measure.work import WorkCost
from penstock.control.schedule.overlap import LastStages
from penstock.control.state.lease import Lease
from penstock.control.tuning import Tuning
from penstock.grants.offset import Offset, Positions
from penstock.streams.tailing import StreamInfo
from penstock.vocabulary.model import FloatArray


@dataclass(slots=True, eq=False)
class Reader:
    """One governed source of one streaming query, with the connection of its planner. The engine writes it.

    Attributes:
        id: The reader's id, made with the reader's first offset.
        who: The names with which the reader joined: its query, its slot in the query, and its token.
        stream: The stream that the reader reads.
        connection: The connection of the reader's planner.
        offset: The reader's present offset.
        counted: The last offset that Spark has surely logged. Spark has planned the batch up to it, or has
            begun the next batch there.
        questions: Number of questions that the reader has asked since it joined.
        finished: Whether the reader, under AvailableNow, has reached its end. It takes no later rows.
    """

    id: str
    who: Joining
    stream: StreamInfo
    connection: Hashable
    offset: Offset
    counted: Offset
    questions: int = 0
    finished: bool = False

    @property
    def query(self) -> str:
        return self.who.query

    @property
    def slot(self) -> str:
        return self.who.slot

    @property
    def token(self) -> str:
        return self.who.token

    @property
    def positions(self) -> Positions:
        return self.offset.end


@dataclass(frozen=True, slots=True)
class Gone:
    """A reader that has left, as it was when it left. Rows that arrived later do not count for the reader.

    Attributes:
        stream: The name of the stream that the reader read.
        offset: The reader's last offset that Spark had surely logged.
        waiting: Number of rows that waited for the reader.
        oldest_s: Age of the oldest of these rows.
        token: Token of the `read_stream` call that made the reader.
        dense: Whether each position of the stream has a row.
    """

    stream: str
    offset: Offset
    waiting: int
    oldest_s: float | None
    token: str = ""
    dense: bool = True


@dataclass(frozen=True, slots=True)
class Joining:
    """The names with which a reader joins.

    Attributes:
        query: The key of the query. Readers with the same key share micro-batches.
        name: The name that the user gave the query.
        cls: The class of the query.
        slot: The reader's slot in a query with several readers; empty if the query has one reader.
        token: Token of the `read_stream` call that made the reader.
        driver: Id of the Spark application that runs the query.
    """

    query: str
    name: str
    cls: str
    slot: str = ""
    token: str = ""
    driver: str = ""


UNSETTLED_BATCHES = 4
"""A driver that is this many batches late with what it says of their jobs is not waited for."""


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A batch that has ended.

    Attributes:
        lease: What it ran under.
        at_s: On the timer, when it ended.
    """

    lease: Lease
    at_s: float


@dataclass(slots=True)
class QueryCost:
    """The cost of a query's batches. The only writers are the methods here.

    Attributes:
        model: Gives the time of a batch by its rows.
        last_stages: Predicts when a running batch frees its cores.
        largest_rows: Rows of the largest batch so far. The next batch may only be some times as large.
        work: Gives the core seconds of a batch by its rows, where the driver says what tasks take.
        cores: Cores of the machine; `None` where the driver does not say how many there are.
        unsettled: Batches that have ended, but of whose jobs the driver has not said all.
    """

    model: CostModel = field(default_factory=CostModel)
    last_stages: LastStages = field(default_factory=LastStages)
    largest_rows: int = 0
    work: WorkCost = field(default_factory=WorkCost)
    cores: int | None = None
    unsettled: deque[Ended] = field(default_factory=lambda: deque(maxlen=UNSETTLED_BATCHES))

    @property
    def now(self) -> BatchCost:
        """What the next batch costs."""
        if self.cores is None or self._driver_is_silent:
            return alone(self.model)
        return on_cores(self.work, self.cores)

    @property
    def _driver_is_silent(self) -> bool:
        """Whether the driver says how many cores there are, and nothing of what batches take."""
        return not self.work.model.ready and len(self.unsettled) == UNSETTLED_BATCHES

    def settle(self) -> None:
        """Learns from batches that have ended, and of whose jobs the driver has now said all."""
        for ended in list(self.unsettled):
            use = ended.lease.use
            if use.before_s is not None and use.jobs >= ended.lease.jobs:
                self.unsettled.remove(ended)
                self.work.learn(ended.lease.admitted, ended.lease.used(ended.at_s))

    def learn(self, lease: Lease, now_s: float, tuning: Tuning) -> None:
        """Learns from a complete batch, which began when the batch before it was complete."""
        self.model.learn(lease.admitted, lease.ran_s(now_s))
        self.last_stages.learn(lease, now_s, tuning)
        self.largest_rows = max(self.largest_rows, lease.admitted)
        self.unsettled.append(Ended(lease, now_s))
        self.settle()

    def run_on(self, cores: int | None) -> None:
        """Notes how many cores the machine has."""
        self.cores = cores


@dataclass(slots=True)
class QueryTurn:
    """The present turn of a query, and the last turn. The lease book writes all but `windows_wait`.

    Attributes:
        lease: The lease that the query holds.
        reserved: Whether a slot is reserved for the query, because its grant is being decided.
        granted_s: Time, on the timer, at which the query's last batch was granted.
        done_s: Time, on the timer, at which the query's last batch was complete.
        batches: Number of complete batches.
        windows_wait: Whether rows were processed since the last tick. Windows may then be ready to close. The
            only writers are `open_windows` and `close_windows`.
    """

    lease: Lease | None = None
    reserved: bool = False
    granted_s: float = -math.inf
    done_s: float = -1.0
    batches: int = 0
    windows_wait: bool = False

    def open_windows(self) -> None:
        """Rows were processed: the watermark may close windows in the next batch."""
        self.windows_wait = True

    def close_windows(self) -> None:
        """A tick was granted, or is planned: an empty batch that closes windows."""
        self.windows_wait = False


@dataclass(slots=True)
class QueryQuestion:
    """A query's question for a grant. The only writer is `core.questions`.

    Attributes:
        leader: The reader that asks first in each micro-batch. Only this reader's question can open a grant.
        open: The reader whose question waits for an answer.
        until_s: Until this time, on the timer, the query counts as wanting a turn, even without a question.
    """

    leader: str | None = None
    open: str | None = None
    until_s: float = -math.inf


@dataclass(slots=True)
class QueryFlags:
    """Wishes of a driver for a query. The only writers are the methods here.

    Attributes:
        refused: Whether the query gets no more grants, because it is being stopped.
        draining: Whether the query processes its waiting rows without shedding.
    """

    refused: bool = False
    draining: bool = False

    def refuse(self, on: bool) -> None:
        """Notes that a driver stops the query, or does not stop it after all."""
        self.refused = on

    def drain(self, on: bool) -> None:
        """Notes that a driver wants all waiting rows processed, or no longer wants that."""
        self.draining = on

    def begin_again(self) -> None:
        """Forgets all wishes, because the query begins again."""
        self.refused = self.draining = False


NOTED_BATCHES = RECENT_BATCHES - 1
"""Number of ended micro-batches whose line may still be corrected. The SIC ledger remembers one batch more:
the running one."""


@dataclass(slots=True, eq=False)
class QueryResults:
    """Results of a query's batches, for status and record. The only writer is the ledger.

    Attributes:
        dropped: Number of rows that Spark's watermark dropped as late since the control plane began.
        closing: Arrival times (on the timer) and rows of the last batch. The next batch closes the windows
            that this batch's rows have ended.
        noted: The last lines of `sic.jsonl` about the query, as they were last written.
    """

    dropped: float = 0.0
    closing: tuple[FloatArray, FloatArray] | None = None
    noted: deque[SicLine] = field(default_factory=lambda: deque(maxlen=NOTED_BATCHES))


@dataclass(slots=True)
class QueryShedding:
    """How a query sheds, for status and log. The only writer is `core.granting`.

    Attributes:
        reason: The reason of the class's shedder for its last choice.
        warned_late: Whether the control plane has warned that rows far older than the target are shed.
    """

    reason: str | None = None
    warned_late: bool = False


@dataclass(slots=True, eq=False)
class Query:
    """A streaming query: one or several readers that share each micro-batch.

    Members write `readers`, `past`, `left_s` and `ungoverned`. `begins_again` writes `identity` and `costs`
    anew. Each of the other attributes is a part of the state with one writer, which the part's class names.

    Attributes:
        identity: The names with which the query's first reader joined.
        readers: Readers that have joined, by id.
        past: Readers that have left, by id. Their rows still count.
        left_s: Time, on the timer, at which the last reader left.
        ungoverned: Number of known grants that the query gave itself while the control plane was silent.
        backlog: The rows that wait for the query.
        costs: The cost of the query's batches.
        turn: The query's present turn.
        question: The query's question for a grant.
        flags: Wishes of the query's driver.
        results: Results of the query's batches, for status and record.
        shedding: How the query sheds, for status and log.
    """

    identity: Joining
    readers: dict[str, Reader] = field(default_factory=dict)
    past: dict[str, Gone] = field(default_factory=dict)
    left_s: float = -math.inf
    ungoverned: int = 0
    backlog: QueryBacklog = field(default_factory=QueryBacklog)
    costs: QueryCost = field(default_factory=QueryCost)
    turn: QueryTurn = field(default_factory=QueryTurn)
    question: QueryQuestion = field(default_factory=QueryQuestion)
    flags: QueryFlags = field(default_factory=QueryFlags)
    results: QueryResults = field(default_factory=QueryResults)
    shedding: QueryShedding = field(default_factory=QueryShedding)

    @property
    def key(self) -> str:
        return self.identity.query

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def cls(self) -> str:
        return self.identity.cls

    @property
    def cost(self) -> BatchCost:
        return self.costs.now

    @property
    def lease(self) -> Lease | None:
        return self.turn.lease

    @property
    def wanted(self) -> dict[str, tuple[str, Positions]]:
        """By reader that still wants rows, the id of its stream and its positions."""
        return {r.id: (r.stream.id, r.positions) for r in self.readers.values() if not r.finished}

    def grants(self, lease: Lease) -> dict[str, int]:
        """Returns the number of the grant, by reader with a part in the micro-batch of a lease."""
        there = sorted(lease.logged & self.readers.keys())
        return {name: self.readers[name].counted.grant for name in there}

    def begins_again(self, driver: str) -> None:
        """Resets a query that had stopped and runs again.

        In another Spark application its costs are learned anew, because the new JVM has compiled nothing yet.
        """
        self.flags.begin_again()
        if driver != self.identity.driver:
            self.identity, self.costs = replace(self.identity, driver=driver), QueryCost()


def granted_by_itself(before: Reader | None, past: Gone | None, offset: Offset) -> int:
    """Returns how many grants a source gave itself while the control plane was silent.

    The number follows from the grant numbers of its offsets.

    Args:
        before: The reader as it was known before it joined again.
        past: The same reader, if it had left.
        offset: The offset with which the reader joins.
    """
    if not offset.ungoverned:
        return 0
    known = before.counted if before is not None else past.offset if past is not None else None
    return 1 if known is None else max(0, offset.grant - known.grant)
