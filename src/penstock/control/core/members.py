"""Readers that have joined, queries that run or ended recently, and the owners of shared streams."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace

from penstock.control.core.events import ReaderJoined
from penstock.control.state.past import AWAY_S, QUERIES, Past
from penstock.control.state.query import Gone, Query, QueryCost, Reader, granted_by_itself
from penstock.control.state.sharing import SharedStreams
from penstock.grants.offset import Positions
from penstock.vocabulary.errors import InvalidInputError, RefusedError

_log = logging.getLogger(__name__)


class Members:
    """Queries and readers, by key and id."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}
        self.readers: dict[str, Reader] = {}
        self.past = Past()
        self.shared = SharedStreams()
        self.forbidden: dict[str, tuple[str, str, str]] = {}
        """By token or reader, the error for its next question: rule, got, hint."""
        self.expected: dict[Hashable, tuple[str, Positions]] = {}
        """By connection of a reader that is about to join, the id of its stream and its positions."""
        self.windowed: set[str] = set()
        """Tokens of queries whose answers are windows that the watermark closes."""
        self.remembered: dict[str, QueryCost] = {}
        """By query that has not joined yet, the cost that an earlier control plane learned."""
        self._by_class: dict[str, list[Query]] = {}

    # -- looking --------------------------------------------------------------------------------

    def query_of(self, reader: str) -> Query:
        return self.queries[self.readers[reader].query]

    def of_class(self, cls: str) -> list[Query]:
        """Returns the queries of a class by key, with the ended queries that the status still shows."""
        if cls not in self._by_class:
            mine = (q for q in self.queries.values() if q.cls == cls)
            self._by_class[cls] = sorted(mine, key=lambda q: q.key)
        return self._by_class[cls]

    def with_tokens(self, tokens: Collection[str]) -> list[Query]:
        """Returns the queries with a reader that has one of some tokens. A driver knows its own tokens."""
        keys = {reader.query: None for reader in self.readers.values() if reader.token in tokens}
        return [self.queries[key] for key in keys]

    def known_by(self, readers: Collection[str]) -> Query | None:
        """The query that has one of some readers, or had."""
        found = (q for q in self.queries.values() if any(r in q.readers or r in q.past for r in readers))
        return next(found, None)

    def reads(self) -> list[tuple[str, str]]:
        """Returns, for each reader, the id of its stream and the class of its query."""
        return [(reader.stream.id, self.queries[reader.query].cls) for reader in self.readers.values()]

    def needed(self) -> list[tuple[str, Positions]]:
        """Returns the stream and the positions of each reader that has joined or is about to join.

        A reader that has joined needs all rows after the last offset that Spark has surely logged.
        """
        there = [(reader.stream.id, reader.counted.end) for reader in self.readers.values()]
        return [*there, *self.expected.values()]

    def has_windows(self, query: Query) -> bool:
        """Whether a query's answers are windows that the watermark closes."""
        return any(reader.token in self.windowed for reader in query.readers.values())

    def refusal(self, reader: Reader) -> RefusedError | None:
        """Returns why a reader's question is refused, or `None`.

        A refusal is given once: it ends the query, and the next query with that name may be in order.
        """
        for name in (reader.token, reader.id):
            if name in self.forbidden:
                return RefusedError(*self.forbidden.pop(name))
        return None

    # -- coming and going -----------------------------------------------------------------------

    def join(self, event: ReaderJoined) -> Reader:
        """Books that a reader has joined."""
        who, offset = event.who, event.offset
        query = self.queries.get(who.query)
        if query is not None:
            _check_same(query, event)
        if query is None:
            costs = self.remembered.pop(who.query, None) or QueryCost()
            query = self.queries[who.query] = Query(replace(who, slot="", token=""), costs=costs)
            self._by_class.pop(who.cls, None)
        elif not query.readers:
            query.begins_again(who.driver)
        reader = Reader(offset.reader, who, event.stream, event.connection, offset, offset)
        query.ungoverned += granted_by_itself(
            self.readers.get(reader.id), query.past.pop(reader.id, None), offset
        )
        self.past.comes_back(reader.id)
        # a control plane that was restarted cannot know whether windows wait for a tick; one more is cheap
        if offset.grant > 0 and not offset.tick:
            query.turn.open_windows()
        query.readers[reader.id] = self.readers[reader.id] = reader
        return reader

    def of_connection(self, connection: Hashable) -> list[Reader]:
        """Returns the readers whose planner asks over a connection."""
        return [reader for reader in self.readers.values() if reader.connection == connection]

    def leave(self, reader: Reader, as_it_left: Gone, now_s: float) -> None:
        """Books that a reader has left."""
        query = self.queries[reader.query]
        del self.readers[reader.id], query.readers[reader.id]
        query.backlog.forget(reader.id)
        query.past[reader.id] = as_it_left
        query.left_s = now_s

    def gone_for_good(self, classes: Iterable[str], now_s: float) -> list[Query]:
        """Moves the readers that left first into the totals: the number of ended readers has no bound.

        Returns:
            Queries to forget. Only their row counts are kept.
        """
        for query in self.queries.values():
            while len(query.past) > QUERIES:
                oldest = next(iter(query.past))
                self.past.fold(query.cls, query.name, {oldest: query.past.pop(oldest)})
        found = []
        for name in classes:
            gone = [query for query in self.of_class(name) if not query.readers]
            for query in sorted(gone, key=lambda q: q.left_s)[: max(0, len(gone) - QUERIES)]:
                if now_s - query.left_s >= AWAY_S:
                    self.past.fold(name, query.name, query.past)
                    found.append(query)
        return found

    def forget(self, query: Query) -> set[str]:
        """Forgets a query but for its row counts in the totals. Returns the tokens of its readers."""
        del self.queries[query.key]
        self._by_class.pop(query.cls, None)
        tokens = {gone.token for gone in query.past.values()} - {r.token for r in self.readers.values()}
        self.windowed -= tokens
        for name in (*tokens, *query.past):
            self.forbidden.pop(name, None)
        return tokens

    # -- shared streams -------------------------------------------------------------------------

    def check_read(self, stream: str, cls: str, priorities: Mapping[str, float]) -> None:
        """Refuses a class that is above the owner of the shared stream that it wants to read."""
        self.shared.check([(stream, cls)], priorities)


def _check_same(query: Query, event: ReaderJoined) -> None:
    who = event.who
    if query.cls != who.cls:
        raise InvalidInputError(
            f"query {who.name} has one class", f"{query.cls} and {who.cls}", "give all its readers one class"
        )
    for other in query.readers.values():
        if who.slot and other.slot == who.slot and other.id != event.offset.reader:
            raise InvalidInputError(
                f"the readers of flow.query({who.name!r}) are used in one streaming query",
                "a second one was started from them",
                "call flow.query with another name for it",
            )
