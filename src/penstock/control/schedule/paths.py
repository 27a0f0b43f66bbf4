"""The way of a row through shared streams of its own class: how many turns it waits for, where it is at each.

A row that reaches a query by way of a shared stream has been in the batch of another query before. Its delay
target is that of the whole way, so each query on it has a part: of a way of two queries the first one has to
be done with a row after half of the target. A shared stream of a higher class is a source like any other,
whose rows are older when they come.

When each query had the whole target, a query behind a shared stream lost 5 % of its rows as late where there
was time for all, and 70 % under an overload in which the others lost a third.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.control.state.query import Query


class Paths:
    """Where queries stand on the ways of their rows.

    Args:
        queries: By key, with their readers.
        writers: By the id of a shared stream, the query that writes it.
    """

    def __init__(self, queries: Mapping[str, Query], writers: Mapping[str, str]) -> None:
        self._queries, self._writers = queries, writers
        self._places: dict[str, tuple[int, int]] = {}

    def changed(self) -> None:
        """A reader or a shared stream came or went."""
        self._places.clear()

    def turns(self, query: str) -> int:
        """How many turns a row has waited for when a query is done with it."""
        return self._place(query)[0]

    def due_fraction(self, query: str) -> float:
        """The part of its target after which a row must have left a query, to be in time at the last one."""
        before, whole = self._place(query)
        return before / whole

    def _place(self, query: str) -> tuple[int, int]:
        """Queries on the longest way to a query, itself included, and on the longest way through it."""
        if not self._writers:
            return 1, 1
        if query not in self._places:
            before, after = self._longest(query, True, frozenset()), self._longest(query, False, frozenset())
            self._places[query] = before, before + after - 1
        return self._places[query]

    def _longest(self, query: str, upwards: bool, seen: frozenset[str]) -> int:
        """Queries on the longest way that ends, or begins, with a query; a circle is gone round once."""
        beside = self._above(query) if upwards else self._below(query)
        seen |= {query}
        return 1 + max((self._longest(q, upwards, seen) for q in beside - seen), default=0)

    def _above(self, query: str) -> set[str]:
        """Queries of the same class that write what a query reads."""
        if query not in self._queries:
            return set()
        streams = {reader.stream.id for reader in self._queries[query].readers.values()}
        writers = {self._writers[stream] for stream in streams if stream in self._writers}
        return {w for w in writers if self._same_class(query, w)}

    def _below(self, query: str) -> set[str]:
        return {q for q in self._queries if query in self._above(q)}

    def _same_class(self, one: str, other: str) -> bool:
        return other in self._queries and self._queries[one].cls == self._queries[other].cls
