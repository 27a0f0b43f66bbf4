"""Highest rate first inside a class, without starvation (HR as CQC changes it, pham2016 6.1.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A query of the class that could run now.

    Attributes:
        key: The query.
        rate_per_s: Output rows that a second of its work brings; `None` if that is not known yet.
    """

    key: str
    rate_per_s: float | None


class HighestRate:
    """Rounds: each query that can run has one turn a round, in the order of their rates.

    Plain highest rate would minimise the mean delay and starve whoever has a low rate. A query whose rate is
    not known goes first, for that is how it becomes known.
    """

    def __init__(self) -> None:
        self._had_turn: set[str] = set()

    def next_of(self, candidates: Iterable[Candidate]) -> str | None:
        """Whose turn it is; `took` then books it."""
        able = {candidate.key: candidate.rate_per_s for candidate in candidates}
        fresh = able.keys() - self._had_turn or able.keys()
        unknown = {key for key in fresh if able[key] is None}
        return min(fresh, key=lambda key: (key not in unknown, -(able[key] or 0.0), key), default=None)

    def took(self, key: str, candidates: Iterable[Candidate]) -> None:
        """A query has its turn; a new round begins when all that can run have had theirs."""
        able = {candidate.key for candidate in candidates}
        if not able - self._had_turn:
            self._had_turn.clear()
        self._had_turn.add(key)
