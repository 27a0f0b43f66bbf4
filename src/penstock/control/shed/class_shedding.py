"""What a class sheds, decided over all its queries at once; a grant carries out its query's part.

When a query has its turn, the class's shedder looks at the batches that wait for this query. It also looks
at the batches that will wait for the other queries at their turns. The shedder keeps as many rows as the
turns of one turn interval hold. The kept rows of this query become the grant's plan. The kept rows of the
other queries are decided anew with their own grants. The strategy of the class says what a batch is, and
makes a plan of the choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.control.backlog.row_values import FetchedValues, RowValues, inside
from penstock.control.backlog.waiting import Cut, Waiting, cut
from penstock.control.measure.sic import SicLedger
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.turns import Turn
from penstock.control.shed.capacity_view import CapacityView, CapacityViews
from penstock.control.shed.checked import checked
from penstock.control.shed.strategies.base import GrantedRows, KeptRows, ShedStrategy
from penstock.control.state.classes import GovernedClass
from penstock.control.state.query import Query, Reader
from penstock.control.tuning import TUNING, Tuning
from penstock.grants.plans.values import Values
from penstock.policies.shedding.base import Shedder, ShedObservation
from penstock.vocabulary.model import Admission
from penstock.vocabulary.moment import Moment


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """What the shedder of a class chose for the query that is being granted.

    Attributes:
        cut: Where the grant ends, and which rows before that are late.
        seen: What the shedder saw.
        kept: Which rows are kept, and what the shedder decided.
    """

    cut: Cut
    seen: ShedObservation
    kept: KeptRows


class ClassShedding:
    """Has the shedders of classes choose which waiting rows of a query are kept.

    Args:
        ledger: The queries' SIC.
        paths: Where queries stand on the paths of rows through shared streams.
        tuning: Figures.
    """

    def __init__(self, ledger: SicLedger, paths: Paths, tuning: Tuning = TUNING) -> None:
        self._paths, self._views, self._tuning = paths, CapacityViews(ledger, tuning), tuning
        self.values: dict[str, RowValues] = {}
        """By class, the values that were looked up in its waiting rows."""
        self._batch_s: dict[str, float] = {}
        """By query whose batches may be longer than its turn, the planned length of its last batch."""
        self._samples: dict[str, Values] = {}
        """By query, what a sample of the rows of its last grant was worth."""

    def forget(self, query: str) -> None:
        """Forgets a query that is gone for good."""
        self._batch_s.pop(query, None)
        self._samples.pop(query, None)

    def take_in(self, cls: str, fetched: FetchedValues) -> None:
        """Takes in values of rows that the strategy of a class needed."""
        self.values.setdefault(cls, RowValues()).take_in(fetched)

    def forget_values(self, cls: str, readers: Iterable[Reader] = ()) -> None:
        """Forgets values of rows of a class, except of rows that one of these readers has not passed yet."""
        values = self.values.get(cls)
        if values is not None:
            values.forget(readers)
            if values.is_empty:
                del self.values[cls]

    def choose(
        self,
        governed: GovernedClass,
        queries: Sequence[Query],
        waiting: Waiting,
        grant: Admission,
        turn: Turn,
        most_rows: float,
        at: Moment,
    ) -> Chosen | None:
        """Has the class's shedder choose which waiting rows of a query are kept.

        Args:
            governed: The class.
            queries: The queries of the class. The first of them is being granted.
            waiting: What waited for that query when the grant was begun. The values of rows that have come
                since would have to be fetched, too.
            grant: What the load manager admits. Only the time before which rows are late counts here.
            turn: How long grants of the class's queries may be.
            most_rows: How many rows the grant may have.
            at: Now.

        Returns:
            `None` if the shedder has nothing to decide: the class has no shedder, or is in a dry run; or the
            cost of the query's batches is not known yet; or all waiting rows fit into the class's turns.

        Raises:
            InvalidInputError: The shedder's decision cannot be carried out.
            RowsNeededError: The strategy of the class must know values of rows first.
        """
        query, shedder, strategy = queries[0], governed.shedder, governed.strategy
        if shedder is None or strategy is None or governed.cycle.dry_run or not query.cost.ready:
            return None
        # A query that never had rows has no known cost. The others do not wait until it has one.
        queries = [query, *(other for other in queries[1:] if other.cost.ready)]
        decided = self._cut(governed, strategy, query, waiting, grant, turn, at)
        segments = inside(waiting.parts, decided)
        keep_fraction = None if governed.traits.gives_grants else governed.plant.keep_fraction
        view = self._views.view(queries, segments, turn, at, keep_fraction)
        values = self.values.setdefault(governed.name, RowValues())
        values.forget(reader for q in queries for reader in q.readers.values())
        granted = GrantedRows(query, decided, segments, values, self._samples)
        chosen = self._ask(shedder, strategy, granted, view)
        for _ in range(self._tuning.smaller):
            if chosen is None or chosen.kept.rows <= most_rows:
                break
            view = replace(view, capacity_s=view.capacity_s * most_rows / chosen.kept.rows)
            chosen = self._ask(shedder, strategy, granted, view)
        if chosen is not None and strategy.may_exceed_turn:
            self._batch_s[query.key] = query.cost.batch_s(chosen.kept.rows)
        return chosen

    def _cut(
        self,
        governed: GovernedClass,
        strategy: ShedStrategy,
        query: Query,
        waiting: Waiting,
        grant: Admission,
        turn: Turn,
        at: Moment,
    ) -> Cut:
        """Decides about all rows that wait. Rows are late if they would be late even in this grant.

        The manager's own limit may be too early: it does not know that a batch may be longer than its turn.
        """
        target_s = governed.plant.cls.delay_target_s * self._paths.due_fraction(query.key)
        target_s *= 1.0 - self._tuning.slack_fraction
        batch_s = self._batch_s.get(query.key, 0.0) if strategy.may_exceed_turn else 0.0
        latest_s = at.wall_s + max(turn.of(query.key), batch_s) - target_s
        decided = cut(waiting, Admission(at.wall_s, max(grant.shed_before_s, latest_s), 1.0), math.inf)
        tolerated = governed.traits.late_fraction
        if decided.late_rows <= tolerated * (decided.rows + decided.late_rows):
            decided = cut(waiting, Admission(at.wall_s, -math.inf, 1.0), math.inf)
        return decided

    def _ask(
        self, shedder: Shedder, strategy: ShedStrategy, granted: GrantedRows, view: CapacityView
    ) -> Chosen | None:
        """Shows the shedder what the strategy offers, and carries out its decision."""
        offer = strategy.offer(granted, view)
        if offer is None:
            return None
        seen = self._views.observe(view, offer.shown)
        kept = offer.carry_out(checked(shedder.decide(seen), seen))
        if kept.sample is not None:
            self._samples[granted.query.key] = kept.sample
        return Chosen(granted.cut, seen, kept)
