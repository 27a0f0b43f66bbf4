"""All connected queries in a table of arrays. The figures of a query are written when the query has changed.

Most queries only wait. A contest over a thousand queries is then a few sums over arrays, because nothing has
to be collected from the objects of queries that have not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from penstock.control.backlog import rates
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.snapshot import ClassTraits, Snapshot
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.moment import Moment

_NUMBERS, _HOLDS_FROM_S = 16, 15
_FLAGS, _REFUSED = 6, 5


class QueryTable:
    """The connected queries, also those that get no grants.

    Code that changes a figure of a query that is in a `Snapshot` must call `changed`. Figures that change
    with time alone are computed for all queries at once.

    Args:
        paths: Where queries stand on the ways of their rows.
        tuning: Figures.
    """

    def __init__(self, paths: Paths, tuning: Tuning = TUNING) -> None:
        self._paths, self._tuning = paths, tuning
        self.is_whole = False
        """Whether the table has exactly the queries that are connected, in their order."""
        self._queries: list[Query] = []
        self._places: dict[str, int] = {}
        """By key, the index of a query in the arrays."""
        self._by_stream: dict[str, list[int]] = {}
        """By stream, the indexes of the queries that read the stream."""
        self._keys: list[str] = []
        self._cls = np.empty(0, np.int64)
        self._numbers = np.empty((_NUMBERS, 0))
        self._flags = np.empty((_FLAGS, 0), np.bool_)
        self._rates = np.empty((rates.FIGURES, 0))
        self._changed: set[int] = set()

    # -- what has changed -----------------------------------------------------------------------

    def everything_changed(self) -> None:
        """Notes that a reader or a shared stream came or went, or that several queries have changed."""
        self._paths.changed()
        self.is_whole = False

    def changed(self, query: str) -> None:
        """Notes that a query has changed."""
        if (at := self._places.get(query)) is not None:
            self._changed.add(at)

    def rows_arrived(self, stream: str) -> None:
        """Notes that a stream has more rows."""
        self._changed.update(self._by_stream.get(stream, ()))

    # -- bringing it up to date -----------------------------------------------------------------

    def begin_anew(self, queries: Iterable[Query], classes: Iterable[str]) -> None:
        """Begins a new table, of these queries and these classes."""
        self._queries, self._by_stream = list(queries), {}
        count, index = len(self._queries), {name: i for i, name in enumerate(classes)}
        self._keys = [query.key for query in self._queries]
        self._places = {key: at for at, key in enumerate(self._keys)}
        self._cls = np.array([index[query.cls] for query in self._queries], np.int64)
        self._numbers, self._flags = np.zeros((_NUMBERS, count)), np.zeros((_FLAGS, count), np.bool_)
        self._rates = np.empty((rates.FIGURES, count))
        for at, query in enumerate(self._queries):
            query.backlog.rates.lie_in(self._rates[:, at])
            for reader in query.readers.values():
                self._by_stream.setdefault(reader.stream.id, []).append(at)
        self._changed, self.is_whole = set(range(count)), True

    def stale(self, wall_s: float) -> list[Query]:
        """Queries whose waiting rows must be looked up again: they have changed, or depend on the clock."""
        again = np.flatnonzero(self._numbers[_HOLDS_FROM_S] > wall_s).tolist()
        return [self._queries[at] for at in sorted({*again, *self._changed})]

    def _write(self) -> None:
        """Writes the figures of queries that have changed."""
        for at in self._changed:
            query = self._queries[at]
            waiting, cost, turn = query.backlog.waiting, query.cost, query.turn
            runs = turn.lease is not None or turn.reserved
            self._numbers[:, at] = (
                waiting.rows,
                np.nan if waiting.oldest_s is None else waiting.oldest_s,
                cost.fixed_s,
                cost.row_s,
                cost.error,
                cost.idle_s,
                cost.before_s,
                cost.stretch,
                cost.cores,
                cost.least_task_s,
                turn.done_s,
                turn.granted_s,
                -np.inf if runs else query.question.until_s,
                self._paths.due_fraction(query.key),
                self._paths.turns(query.key),
                query.backlog.holds_from_s,
            )
            self._flags[:, at] = (
                runs,
                cost.ready,
                query.flags.draining,
                turn.windows_wait,
                cost.is_young,
                query.flags.refused,
            )
        self._changed.clear()

    # -- looking --------------------------------------------------------------------------------

    def look(
        self, classes: Sequence[ClassTraits], at: Moment, rest_s: Mapping[str, float] | None = None
    ) -> Snapshot:
        """The queries that may have grants, as they are now. Brings rates up to date.

        Args:
            classes: All classes.
            at: Now.
            rest_s: By query that runs a batch of known cost, the machine time that is left of it. Without
                this, nothing is said of running batches.
        """
        self._write()
        memory_s = [each.target_s * self._tuning.rate_memory for each in classes]
        rates.pass_time(self._rates, self._cls, memory_s, at.timer_s, self._tuning)
        queries, keys, cls, per_s = self._queries, self._keys, self._cls, self._rates
        numbers, flags = self._numbers, self._flags
        if flags[_REFUSED].any():
            able = np.flatnonzero(~flags[_REFUSED])
            queries, keys = [queries[i] for i in able.tolist()], [keys[i] for i in able.tolist()]
            cls, per_s = cls[able], per_s[:, able]
            numbers, flags = numbers[:, able], flags[:, able]
        rows, oldest_s, fixed_s, row_s, error, idle_s, before_s, *others = numbers.copy()
        stretch, cores, least_task_s, done_s, granted_s, until_s, due, turns, _ = others
        runs, ready, draining, windows_wait, young, _ = flags.copy()
        age_s, granted_s = np.maximum(0.0, at.wall_s - oldest_s), at.timer_s - granted_s
        target_s, priority = np.array([(each.target_s, each.priority) for each in classes])[cls].T
        return Snapshot(
            at,
            classes,
            queries,
            keys,
            cls,
            priority,
            asks=at.timer_s <= until_s,
            runs=runs,
            rows=rows,
            age_s=age_s,
            waited_s=np.where(np.isnan(age_s), 0.0, np.fmin(age_s, granted_s)),
            usual_per_s=per_s[rates.USUAL].copy(),
            burst_per_s=per_s[rates.BURST].copy(),
            ready=ready,
            fixed_s=fixed_s,
            row_s=row_s,
            error=error,
            idle_s=idle_s,
            before_s=before_s,
            stretch=stretch,
            cores=cores,
            least_task_s=least_task_s,
            draining=draining,
            windows_wait=windows_wait,
            young=young,
            quiet_s=at.timer_s - done_s,
            target_s=target_s * due,
            turns_of_row=turns.astype(np.int64),
            rest_s=rest_s or {},
        )
