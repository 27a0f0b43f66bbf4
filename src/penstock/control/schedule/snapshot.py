"""What is known of all queries at one moment, as one array a figure: a thousand queries are a few sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.control.cores.width import takes_s
from penstock.control.schedule.turns import Turn
from penstock.control.state.query import Query
from penstock.vocabulary.model import FloatArray
from penstock.vocabulary.moment import Moment

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassTraits:
    """The settings of a class that its turns depend on.

    Attributes:
        name: The class.
        priority: The weight of the class.
        target_s: The delay target of the class.
        overrun_fraction: See `ManagerTraits`.
    """

    name: str
    priority: float
    target_s: float
    overrun_fraction: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All connected queries that may have grants, as they were at a moment. Each array has one entry a query.

    Attributes:
        at: The moment.
        classes: All classes.
        queries: The queries.
        keys: The keys of the queries.
        cls: The class of the query, as an index into `classes`.
        priority: The priority of the query's class.
        asks: Whether the query wants a turn: its question is open, or was answered a moment ago.
        runs: Whether the query runs a batch, or its grant is being decided.
        rows: How many rows wait.
        age_s: How old the oldest waiting row is; NaN where none waits.
        waited_s: How long the query has waited for its turn: the age of its oldest row, or the time since its
            last grant if that is shorter. Where nothing is shed, rows of a low class may be old for ever. The
            query must not go first for that.
        usual_per_s: The usual arrival rate.
        burst_per_s: The arrival rate of the last moments.
        ready: Whether the cost of the query's batches is known. If not, `fixed_s` and `row_s` are 0.
        fixed_s: The machine time of a batch without rows.
        row_s: The machine time that each row adds.
        error: The part by which a batch usually differs from its expected time.
        idle_s: The part of a batch's time in which none of its tasks runs; see `BatchCost`.
        before_s: The time from a grant until the first tasks of its batch can begin.
        stretch: How many times as long its batches take as their work would on the cores that they use.
        cores: The cores of the query's machine; 1 where a batch counts as if it had the machine for itself.
        least_task_s: How much work a task of the query has at least.
        draining: Whether the query processes its backlog unshed.
        windows_wait: Whether windows may wait for a tick.
        young: Whether its cost rests on few batches and may be far off.
        quiet_s: How long ago the query's last batch ended.
        target_s: How long after its arrival a row must be done at this query.
        turns_of_row: How many turns a row has waited for when the query is done with it.
        rest_s: By key of a query that runs a batch of known cost, the machine time that is left of the batch.
    """

    at: Moment
    classes: Sequence[ClassTraits]
    queries: Sequence[Query]
    keys: Sequence[str]
    cls: IntArray
    priority: FloatArray
    asks: BoolArray
    runs: BoolArray
    rows: FloatArray
    age_s: FloatArray
    waited_s: FloatArray
    usual_per_s: FloatArray
    burst_per_s: FloatArray
    ready: BoolArray
    fixed_s: FloatArray
    row_s: FloatArray
    error: FloatArray
    idle_s: FloatArray
    before_s: FloatArray
    stretch: FloatArray
    cores: FloatArray
    least_task_s: FloatArray
    draining: BoolArray
    windows_wait: BoolArray
    young: BoolArray
    quiet_s: FloatArray
    target_s: FloatArray
    turns_of_row: IntArray
    rest_s: Mapping[str, float] = field(default_factory=dict)

    def place_of(self, cls: str) -> int:
        """The index of a class."""
        return next(i for i, each in enumerate(self.classes) if each.name == cls)

    def classes_of(self, which: BoolArray) -> list[int]:
        """The classes of some queries, as indexes in rising order."""
        found: list[int] = np.bincount(self.cls[which]).nonzero()[0].tolist()
        return found

    def turn_s(self, turns: Mapping[str, Turn]) -> FloatArray:
        """How long a turn of each query is; 0 where its class has no turn."""
        usual_s = [turns[cls.name].length_s if cls.name in turns else 0.0 for cls in self.classes]
        found: FloatArray = np.array(usual_s)[self.cls]
        for turn in turns.values():
            found[turn.asking.at] = turn.lengths_s
        return found

    def takes_s(self, machine_s: FloatArray, turns: Mapping[str, Turn]) -> FloatArray:
        """How long the tasks of each query's batch take, if the batch has so much machine time.

        Args:
            machine_s: By query, the machine time.
            turns: By class that has one, its turn.
        """
        of_class_s = [turns[cls.name].task_s if cls.name in turns else 0.0 for cls in self.classes]
        task_s = np.maximum(np.array(of_class_s)[self.cls], self.least_task_s)
        return takes_s(machine_s, self.cores, task_s, self.stretch)

    def batch_s(self, turn_s: FloatArray) -> FloatArray:
        """The machine time of each query's next batch: its turn, or less if few rows wait; else 0."""
        whole_s = self.fixed_s + self.row_s * self.rows
        found: FloatArray = np.where(self.ready, np.minimum(turn_s, whole_s), turn_s)
        return found
