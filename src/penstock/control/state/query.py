"""Who is governed: readers, and the queries they belong to. State, no decisions; each part has one writer."""

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
        id: Minted with the reader's first offset.
        query: The key of the query that it belongs to.
        slot: Which of the query's readers it is; empty for the only one.
        token: Which call of `read_stream` made it.
        stream: What it reads.
        connection: Of its planner.
        offset: Where it stands.
        counted: The last offset that Spark has surely logged: Spark planned a batch to it, or began the next
            one there.
        questions: How many questions it has asked since it joined.
        finished: It runs under AvailableNow and is at its end: what arrived since then is not for it.
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
    """A reader that is gone, as it was when it left: what arrives later is not for it.

    Attributes:
        stream: The name of the stream that it read.
        offset: The last one that Spark had surely logged.
        waiting: Rows that waited for it.
        oldest_s: How old the oldest of them was.
        token: Of the `read_stream` call that made it.
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
    """Who joins.

    Attributes:
        query: What shares micro-batches.
        name: What the user calls the query.
        cls: Its class.
        slot: Which of the query's readers this is; empty for the only one.
        token: Which call of `read_stream` made it.
        driver: Which Spark application the query is of.
    """

    query: str
    name: str
    cls: str
    slot: str = ""
    token: str = ""
    driver: str = ""


@dataclass(slots=True)
class QueryCost:
    """What a query's batches cost. Written where a batch that is complete is booked.

    Attributes:
        model: Batch time by rows.
        last_stages: When a batch that runs frees its cores.
        largest_rows: Of the batches so far: the next is not many times larger, whatever waits.
    """

    model: CostModel = field(default_factory=CostModel)
    last_stages: LastStages = field(default_factory=LastStages)
    largest_rows: int = 0


@dataclass(slots=True)
class QueryTurn:
    """Where a query stands between its turns. Written by the lease book.

    Attributes:
        lease: The grant that it holds.
        reserved: Whether a slot is its own because its grant is being decided.
        granted_s: On the timer, when its last batch was granted.
        done_s: On the timer, when its last batch was complete.
        batches: How many batches are complete.
        windows_wait: Whether rows were processed since the last tick: windows may be ready to close.
    """

    lease: Lease | None = None
    reserved: bool = False
    granted_s: float = -math.inf
    done_s: float = -1.0
    batches: int = 0
    windows_wait: bool = False


@dataclass(slots=True)
class QueryQuestion:
    """A query's question for a grant. Written where questions are put and ended.

    Attributes:
        leader: The reader that asks first in a micro-batch: only its question can open a grant.
        open: The reader whose question waits for an answer.
        until_s: On the timer, up to when the query counts as one that wants a turn, open question or not.
    """

    leader: str | None = None
    open: str | None = None
    until_s: float = -math.inf


@dataclass(slots=True)
class QueryFlags:
    """What a driver said about a query. Written by commands.

    Attributes:
        refused: The query gets no more grants: it is being stopped.
        draining: What waits is processed unshed.
    """

    refused: bool = False
    draining: bool = False


NOTED_BATCHES = RECENT_BATCHES - 1
"""Lines that may still be amended: the books of SIC know these, and the micro-batch that runs."""


@dataclass(slots=True, eq=False)
class QueryResults:
    """What is told of a query. Written where things are booked.

    Attributes:
        ungoverned: Grants that it gave itself while the control plane was silent, as far as they are known.
        dropped: Rows that Spark's watermark dropped as late, since the control plane began.
        shed_reason: Why its class's shedder chose what it chose, when it last did.
        closing: Arrivals (on the timer) and rows of its last batch, where the watermark that they moved
            closes windows in the next.
        noted: Lines of `sic.jsonl` of the last micro-batches that ended, as they were last written.
        warned_late: Whether it was said that rows far older than the target are shed.
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
        identity: Who it is.
        readers: Those that are there, by id.
        past: Readers that are gone, by id: they stay in the books.
        left_s: On the timer, when its last reader left.
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
        """By reader that still wants rows, its stream and where it stands."""
        return {r.id: (r.stream.id, r.positions) for r in self.readers.values() if not r.finished}

    def grants(self, lease: Lease) -> dict[str, int]:
        """By reader that has a part in the micro-batch of a lease, the number of its grant."""
        there = sorted(lease.logged & self.readers.keys())
        return {name: self.readers[name].counted.grant for name in there}

    def begins_again(self, driver: str) -> None:
        """It had stopped and is there again; in another Spark application nothing is compiled yet."""
        self.flags = QueryFlags()
        if driver != self.identity.driver:
            self.identity, self.costs = replace(self.identity, driver=driver), QueryCost()


def granted_by_itself(before: Reader | None, past: Gone | None, offset: Offset) -> int:
    """Grants that a source gave itself while nobody answered, by the numbers of its offsets."""
    if not offset.ungoverned:
        return 0
    known = before.counted if before is not None else past.offset if past is not None else None
    return 1 if known is None else max(0, offset.grant - known.grant)
