"""A desk at which single questions are put to an engine, with embedded logs and one clock for both times."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.control.core import events as ev
from penstock.control.core.instructions import GrantIssued, Instruction, MayProceed
from penstock.control.state.query import Joining, Query
from penstock.control.tuning import TUNING
from penstock.grants.grant import Grant
from penstock.grants.offset import Books, Offset
from penstock.grants.selection import grant_books, select
from penstock.sim.microbatch import Lab
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.tailing import info_of
from penstock.vocabulary.status import Status

SCHEMA = pa.schema([("sensor", pa.string()), ("value", pa.int64())])


class Desk:
    """Puts questions to the engine of a virtual cluster, one at a time."""

    def __init__(self, virtual: Lab, classes: dict[str, dict[str, Any]], **others: Any) -> None:
        self.folder: Path = virtual.folder
        self.open: ExitStack = virtual.open
        # rows that arrive count at once: a desk has no time between two questions
        self.cluster = virtual(classes, tuning=replace(TUNING, look_every_s=0.0), **others)
        self.engine = self.cluster.engine
        self.offsets: dict[str, Offset] = {}
        self.logs: dict[str, EmbeddedLog] = {}
        self.connections: dict[str, Hashable] = {}
        self.answers: dict[str, list[Instruction]] = {}
        self.cluster._deliver = lambda reader, said: self.answers.setdefault(reader, []).append(said)  # type: ignore[method-assign]

    @property
    def queries(self) -> dict[str, Query]:
        return self.engine.members.queries

    def log(self, name: str, partitions: int = 1, key: str | None = None) -> EmbeddedLog:
        config = LogConfig(partitions=partitions, key=key, segment_rows=100)
        log = EmbeddedLog.create(self.folder / name, SCHEMA, config, clock=self.cluster.clock)
        return self.open.enter_context(log)

    def pass_s(self, seconds: float) -> None:
        self.cluster.clock.advance(seconds)
        self.cluster.timer.advance(seconds)

    def join(
        self,
        reader: str,
        log: EmbeddedLog,
        cls: str = "gold",
        query: str = "",
        slot: str = "",
        driver: str = "",
    ) -> None:
        offset = self.offsets.setdefault(
            reader, Offset.initial(reader, {p: log.start(p) for p in range(log.partitions)})
        )
        self.logs[reader], self.connections[reader] = log, object()
        who = Joining(query or reader, query or reader, cls, slot, f"token of {query or reader}", driver)
        self.cluster.follow(log, offset)
        connection = self.connections[reader]
        self.cluster.handle(ev.ReaderJoined(self.cluster.at(), who, info_of(log), connection, offset))

    def leave(self, connection: Hashable) -> None:
        self.cluster.handle(ev.ConnectionEnded(self.cluster.at(), connection))

    def command(self, command: ev.Command) -> None:
        self.cluster.command(command)

    def change(self, cls: str, changes: dict[str, Any]) -> None:
        self.command(ev.ChangeClass(cls, changes))

    def put(self, reader: str, offset: Offset | None = None) -> None:
        """A question; whether it has an answer, `answer` says."""
        self.answers.pop(reader, None)
        self.cluster.handle(ev.Asked(self.cluster.at(), reader, offset or self.offsets[reader]))

    def answer(self, reader: str) -> Grant | None:
        """The grant that a reader's question has got by now."""
        self.cluster.handle(ev.Woke(self.cluster.at()))
        found = self.answers.pop(reader, [])
        grants = [said.grant for said in found if isinstance(said, GrantIssued)]
        return grants[0] if grants else None

    def ask(self, reader: str) -> Grant | None:
        """A question, and its answer if it has one at once; else it is held."""
        self.put(reader)
        return self.answer(reader)

    def token(self, reader: str) -> frozenset[str]:
        return frozenset({self.engine.members.readers[reader].token})

    def proposed(self, reader: str, answer: Grant) -> tuple[Offset, int]:
        draft = self.offsets[reader].advanced(answer.end, answer.late, answer.plan, Books())
        books = grant_books(self.logs[reader], draft, select(self.logs[reader], draft))
        return self.offsets[reader].advanced(answer.end, answer.late, answer.plan, books), books.admitted

    def planned(self, reader: str, offset: Offset, admitted: int, set_aside: bool = False) -> bool:
        """Whether a batch may begin; one that may not waits until it may."""
        self.answers.pop(reader, None)
        self.cluster.handle(ev.BatchPlanned(self.cluster.at(), reader, offset, admitted, set_aside))
        return self.may_proceed(reader)

    def may_proceed(self, reader: str) -> bool:
        return any(isinstance(said, MayProceed) for said in self.answers.pop(reader, []))

    def plan(self, reader: str, answer: Grant) -> bool:
        offset, admitted = self.proposed(reader, answer)
        if self.planned(reader, offset, admitted):
            self.offsets[reader] = offset
            return True
        return False

    def batch(self, reader: str, took_s: float = 0.2) -> Grant:
        """A whole micro-batch up to the moment before the next question."""
        answer = self.ask(reader)
        assert answer is not None
        assert self.plan(reader, answer)
        self.pass_s(took_s)
        return answer

    def reported(self, batch: int, rows: dict[tuple[str, int], float]) -> None:
        self.cluster.handle(ev.BatchReported(self.cluster.at(), batch, rows))

    def status(self) -> Status:
        return self.cluster.status()

    def found(self, cls: str = "gold") -> dict[str, Any]:
        """A class in the status, as JSON."""
        found: dict[str, Any] = self.status().to_json()["classes"][cls]
        return found

    def rows(self, cls: str = "gold") -> dict[str, int]:
        found = self.found(cls)
        assert found["offered"] == found["admitted"] + found["shed"] + found["waiting"]
        return {name: found[name] for name in ("offered", "admitted", "shed", "waiting")}


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch([[f"s{i % 7}" for i in range(count)], list(range(count))], schema=SCHEMA)
