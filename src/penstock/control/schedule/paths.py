"""The way of a row through shared streams of its own class, and the part of the target at each query.

A row that reaches a query through a shared stream was in a batch of another query before. The delay target is
for the whole way, so each query on the way has a part of the target. On a way of two queries, the first query
must be done with a row after half of the target. A shared stream of a higher class is a source like any
other; its rows are older when they arrive.

In an earlier version each query had the whole target. A query behind a shared stream then lost 5 % of its
rows as late although there was time for all of them. Under an overload in which the other queries lost a
third of their rows, it lost 70 %.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control.state.query import Query


class Paths:
    """How many queries are before and behind each query on the ways of rows.

    Args:
        queries: By key, the queries with their readers.
        writers: By id of a shared stream, the key of the query that writes the stream.
    """

    def __init__(self, queries: Mapping[str, Query], writers: Mapping[str, str]) -> None:
        self._queries, self._writers = queries, writers
        self._places: dict[str, tuple[int, int]] = {}

    def changed(self) -> None:
        """Computes the ways anew from now on, because a reader or a shared stream came or went."""
        self._places.clear()

    def turns(self, query: str) -> int:
        """How many turns a row has waited for when a query is done with it."""
        return self._place(query)[0]

    def due_fraction(self, query: str) -> float:
        """The part of the target after which a query must be done with a row, as further queries follow."""
        before, whole = self._place(query)
        return before / whole

    def _place(self, query: str) -> tuple[int, int]:
        """How many queries are on the longest way to a query, itself included, and on that through it."""
        if not self._writers:
            return 1, 1
        if query not in self._places:
            before, after = self._longest(query, True, frozenset()), self._longest(query, False, frozenset())
            self._places[query] = before, before + after - 1
        return self._places[query]

    def _longest(self, query: str, upwards: bool, seen: frozenset[str]) -> int:
        """How many queries are on the longest way that ends with a query (`upwards`), or begins with it.

        A circle is passed once.
        """
        beside = self._above(query) if upwards else self._below(query)
        seen |= {query}
        return 1 + max((self._longest(q, upwards, seen) for q in beside - seen), default=0)

    def _above(self, query: str) -> set[str]:
        """Queries of the same class that write the streams which a query reads."""
        if query not in self._queries:
            return set()
        streams = {reader.stream.id for reader in self._queries[query].readers.values()}
        writers = {self._writers[stream] for stream in streams if stream in self._writers}
        return {w for w in writers if self._same_class(query, w)}

    def _below(self, query: str) -> set[str]:
        """Queries of the same class that read the stream which a query writes."""
        return {q for q in self._queries if query in self._above(q)}

    def _same_class(self, one: str, other: str) -> bool:
        return other in self._queries and self._queries[one].cls == self._queries[other].cls
