"""Highest rate first inside a class, without starvation (HR as CQC changes it, pham2016 6.1.2)."""

from __future__ import annotations

from collections.abc import Mapping


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

    def next_of(self, rates_per_s: Mapping[str, float | None]) -> str | None:
        """Returns the query whose turn it is; `took` then books the turn.

        Args:
            rates_per_s: By query of the class that could run now, the output rows that a second of its work
                brings; `None` if that is not known yet.
        """
        able = rates_per_s.keys()
        fresh = able - self._had_turn or able
        unknown = {key for key in able if rates_per_s[key] is None}
        if tries := fresh & unknown or (set() if self._tried_last else unknown):
            return min(tries, key=lambda key: (key == self._tried, key))
        return min(fresh, key=lambda key: (-(rates_per_s[key] or 0.0), key), default=None)

    def took(self, key: str, rates_per_s: Mapping[str, float | None]) -> None:
        """A query has its turn; a new round begins when all that could run have had theirs."""
        if not rates_per_s.keys() - self._had_turn:
            self._had_turn.clear()
        self._had_turn.add(key)
        self._tried_last = rates_per_s[key] is None
        if self._tried_last:
            self._tried = key
