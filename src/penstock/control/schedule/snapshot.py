"""What is known of all queries at one moment, an array a column: a thousand queries are a few sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.control.schedule.turns import Turn
from penstock.control.state.query import Query
from penstock.vocabulary.model import FloatArray
from penstock.vocabulary.moment import Moment

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassTraits:
    """What turns depend on, of a class.

    Attributes:
        name: The class.
        priority: Its weight.
        target_s: Its delay target.
        overrun_fraction: See `ManagerTraits`.
    """

    name: str
    priority: float
    target_s: float
    overrun_fraction: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All connected queries that may have grants, as they were at a moment.

    Attributes:
        at: The moment.
        classes: All classes.
        queries: The queries; every array has an entry for each.
        cls: Which of the classes.
        asks: Whether a query wants a turn, as its last question says.
        runs: Whether a query runs a batch, or is about to.
        rows: How many rows wait.
        age_s: How old the oldest waiting row is; NaN where none waits.
        usual_per_s: The usual arrival rate.
        burst_per_s: The arrival rate of the last moments.
        ready: Whether it is known what batches cost; else the next three are 0.
        fixed_s: What a batch costs without rows.
        row_s: What a row adds.
        error: Part by which a batch usually differs from its expected time.
        draining: Whether a query works its backlog off unshed.
        windows_wait: Whether windows may wait for a tick.
        quiet_s: How long ago its last batch was complete.
        granted_s: How long ago its last batch was granted.
        target_s: After how long a query is to be done with a row.
        turns_of_row: How many turns a row has waited for when a query is done with it.
    """

    at: Moment
    classes: Sequence[ClassTraits]
    queries: Sequence[Query]
    cls: IntArray
    asks: BoolArray
    runs: BoolArray
    rows: FloatArray
    age_s: FloatArray
    usual_per_s: FloatArray
    burst_per_s: FloatArray
    ready: BoolArray
    fixed_s: FloatArray
    row_s: FloatArray
    error: FloatArray
    draining: BoolArray
    windows_wait: BoolArray
    quiet_s: FloatArray
    granted_s: FloatArray
    target_s: FloatArray
    turns_of_row: IntArray

    @property
    def priority(self) -> FloatArray:
        """By query, the priority of its class."""
        priorities: FloatArray = np.array([cls.priority for cls in self.classes])[self.cls]
        return priorities

    def batch_s(self, turns: Mapping[str, Turn]) -> FloatArray:
        """How long each query's next batch would be: its turn, or less if few rows wait; 0 without a turn."""
        turn_s = np.array(
            [turns[q.cls].of(q.key) if q.cls in turns else 0.0 for q in self.queries], dtype=np.float64
        )
        found: FloatArray = np.where(
            self.ready, np.minimum(turn_s, self.fixed_s + self.row_s * self.rows), turn_s
        )
        return found

    @property
    def waited_s(self) -> FloatArray:
        """How long each query has waited for its turn.

        Since its last grant if its rows are older: where nothing is shed, rows of a low class may be old for
        ever, and the query must not go first for that.
        """
        found: FloatArray = np.where(np.isnan(self.age_s), 0.0, np.fmin(self.age_s, self.granted_s))
        return found


def snapshot(
    queries: Sequence[Query],
    classes: Sequence[ClassTraits],
    at: Moment,
    due_fraction: Callable[[str], float],
    turns_of_row: Callable[[str], int],
) -> Snapshot:
    """The queries as they are now.

    Args:
        queries: Those that are there and may have grants.
        classes: All classes.
        at: Now.
        due_fraction: By query, the part of its class's target after which it is to be done with a row.
        turns_of_row: By query, how many turns a row has waited for when it is done with it.
    """
    index = {cls.name: i for i, cls in enumerate(classes)}
    cls = np.array([index[q.identity.cls] for q in queries], np.int64)
    now_s, wall_s = at.timer_s, at.wall_s
    numbers = np.array(
        [
            (
                waiting.rows,
                np.nan if waiting.oldest_s is None else max(0.0, wall_s - waiting.oldest_s),
                rates.usual_per_s,
                rates.burst_per_s,
                state.level * (state.fixed_s or 0.0),
                state.level * (state.row_s or 0.0),
                state.spread,
                now_s - turn.done_s,
                now_s - turn.granted_s,
                due_fraction(q.identity.query),
                turns_of_row(q.identity.query),
            )
            for q in queries
            for waiting, rates, state, turn in [
                (q.backlog.waiting, q.backlog.rates, q.costs.model.state, q.turn)
            ]
        ]
    ).reshape(-1, 11)
    flags = np.array(
        [
            (
                q.turn.lease is None and not q.turn.reserved and now_s <= q.question.until_s,
                q.turn.lease is not None or q.turn.reserved,
                q.costs.model.state.fixed_s is not None,
                q.flags.draining,
                q.turn.windows_wait,
            )
            for q in queries
        ],
        np.bool_,
    ).reshape(-1, 5)
    targets = np.array([each.target_s for each in classes])
    return Snapshot(
        at,
        classes,
        queries,
        cls,
        asks=flags[:, 0],
        runs=flags[:, 1],
        rows=numbers[:, 0],
        age_s=numbers[:, 1],
        usual_per_s=numbers[:, 2],
        burst_per_s=numbers[:, 3],
        ready=flags[:, 2],
        fixed_s=numbers[:, 4],
        row_s=numbers[:, 5],
        error=numbers[:, 6],
        draining=flags[:, 3],
        windows_wait=flags[:, 4],
        quiet_s=numbers[:, 7],
        granted_s=numbers[:, 8],
        target_s=targets[cls] * numbers[:, 9] if cls.size else numbers[:, 9],
        turns_of_row=numbers[:, 10].astype(np.int64),
    )
