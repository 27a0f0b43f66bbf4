"""The state of governed readers and queries. Each part of the state is written by one module."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from penstock.control.backlog.backlog import QueryBacklog
from penstock.control.measure.cost import CostModel
from penstock.control.measure.lines import SicLine
from penstock.control.measure.sic import RECENT_BATCHES
from penstock.control.schedule.overlap import LastStages
from penstock.control.state.lease import Lease
from penstock.grants.offset import Offset, Positions
from penstock.streams.tailing import StreamInfo
from penstock.vocabulary.model import FloatArray


@dataclass(slots=True, eq=False)
class Reader:
    """One governed source of one streaming query, with the connection of its planner.

    Attributes:
        id: The reader's id, made with the reader's first offset.
        query: The key of the reader's query.
        slot: The reader's slot in a query with several readers; empty if the query has one reader.
        token: Token of the `read_stream` call that made the reader.
        stream: The stream that the reader reads.
        connection: The connection of the reader's planner.
        offset: The reader's present offset.
        counted: The last offset that Spark has surely logged. Spark has planned the batch up to it, or has
            begun the next batch there.
        questions: Number of questions that the reader has asked since it joined.
        finished: Whether the reader, under AvailableNow, has reached its end. It takes no later rows.
    """

    id: str
    query: str
    slot: str
    token: str
    stream: StreamInfo
    connection: Hashable
    offset: Offset
    counted: Offset
    questions: int = 0
    finished: bool = False

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
    """

    stream: str
    offset: Offset
    waiting: int
    oldest_s: float | None
    token: str = ""


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


@dataclass(slots=True)
class QueryCost:
    """The cost of a query's batches. The ledger writes it when a batch is complete.

    Attributes:
        model: Gives the time of a batch by its rows.
        last_stages: Predicts when a running batch frees its cores.
        largest_rows: Rows of the largest batch so far. The next batch may only be some times as large.
    """

    model: CostModel = field(default_factory=CostModel)
    last_stages: LastStages = field(default_factory=LastStages)
    largest_rows: int = 0


@dataclass(slots=True)
class QueryTurn:
    """The present turn of a query, and the last turn. The lease book writes it.

    Attributes:
        lease: The lease that the query holds.
        reserved: Whether a slot is reserved for the query, because its grant is being decided.
        granted_s: Time, on the timer, at which the query's last batch was granted.
        done_s: Time, on the timer, at which the query's last batch was complete.
        batches: Number of complete batches.
        windows_wait: Whether rows were processed since the last tick. Windows may then be ready to close.
    """

    lease: Lease | None = None
    reserved: bool = False
    granted_s: float = -math.inf
    done_s: float = -1.0
    batches: int = 0
    windows_wait: bool = False


@dataclass(slots=True)
class QueryQuestion:
    """A query's question for a grant. `Questions` writes it.

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
    """Wishes of a driver for a query. Commands write them.

    Attributes:
        refused: Whether the query gets no more grants, because it is being stopped.
        draining: Whether the query processes its waiting rows without shedding.
    """

    refused: bool = False
    draining: bool = False


NOTED_BATCHES = RECENT_BATCHES - 1
"""Number of ended micro-batches whose line may still be corrected. The SIC ledger remembers one batch more:
the running one."""


@dataclass(slots=True, eq=False)
class QueryResults:
    """Results of a query for status and record. Each module that books a result writes it.

    Attributes:
        ungoverned: Number of known grants that the query gave itself while the control plane was silent.
        dropped: Number of rows that Spark's watermark dropped as late since the control plane began.
        shed_reason: The reason of the class's shedder for its last choice.
        closing: Arrival times (on the timer) and rows of the last batch. The next batch closes the windows
            that this batch's rows have ended.
        noted: The last lines of `sic.jsonl` about the query, as they were last written.
        warned_late: Whether the control plane has warned that rows far older than the target are shed.
    """

    ungoverned: int = 0
    dropped: float = 0.0
    shed_reason: str | None = None
    closing: tuple[FloatArray, FloatArray] | None = None
    noted: deque[SicLine] = field(default_factory=lambda: deque(maxlen=NOTED_BATCHES))
    warned_late: bool = False


@dataclass(slots=True, eq=False)
class Query:
    """A streaming query: one or several readers that share each micro-batch.

    Attributes:
        identity: The names with which the query's first reader joined.
        readers: Readers that have joined, by id.
        past: Readers that have left, by id. Their rows still count.
        left_s: Time, on the timer, at which the last reader left.
        backlog: The rows that wait for the query.
        costs: The cost of the query's batches.
        turn: The query's present turn.
        question: The query's question for a grant.
        flags: Wishes of the query's driver.
        results: Results for status and record.
    """

    identity: Joining
    readers: dict[str, Reader] = field(default_factory=dict)
    past: dict[str, Gone] = field(default_factory=dict)
    left_s: float = -math.inf
    backlog: QueryBacklog = field(default_factory=QueryBacklog)
    costs: QueryCost = field(default_factory=QueryCost)
    turn: QueryTurn = field(default_factory=QueryTurn)
    question: QueryQuestion = field(default_factory=QueryQuestion)
    flags: QueryFlags = field(default_factory=QueryFlags)
    results: QueryResults = field(default_factory=QueryResults)

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
    def cost(self) -> CostModel:
        return self.costs.model

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
        self.flags = QueryFlags()
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
