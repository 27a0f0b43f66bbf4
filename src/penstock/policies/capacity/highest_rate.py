"""Highest rate first inside a class, without starvation (HR as CQC changes it, pham2016 6.1.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A query of the class that could run now.

    Attributes:
        key: The query.
        rate_per_s: Output rows that a second of its work brings; `None` if that is not known yet.
    """

    key: str
    rate_per_s: float | None


class HighestRate:
    """Gives each query that can run one turn in a round, in the order of their rates.

    Plain highest rate would minimise the mean delay and starve queries with a low rate. Queries whose rate is
    not known go first and also have every other turn, because a rate becomes known only when the query runs.
    In a class that has little of the time, a round of the other queries may take long.
    """

    def __init__(self) -> None:
        self._had_turn: set[str] = set()
        self._tried: str | None = None
        """The last query whose rate was not known."""
        self._tried_last = False

    def next_of(self, candidates: Iterable[Candidate]) -> str | None:
        """Returns the query whose turn it is; `took` then books the turn."""
        able = {candidate.key: candidate.rate_per_s for candidate in candidates}
        fresh = able.keys() - self._had_turn or able.keys()
        unknown = {key for key, rate in able.items() if rate is None}
        if tries := fresh & unknown or (set() if self._tried_last else unknown):
            return min(tries, key=lambda key: (key == self._tried, key))
        return min(fresh, key=lambda key: (-(able[key] or 0.0), key), default=None)

    def took(self, key: str, candidates: Iterable[Candidate]) -> None:
        """A query has its turn; a new round begins when all that can run have had theirs."""
        able = {candidate.key: candidate.rate_per_s for candidate in candidates}
        if not able.keys() - self._had_turn:
            self._had_turn.clear()
        self._had_turn.add(key)
        self._tried_last = able[key] is None
        if self._tried_last:
            self._tried = key
