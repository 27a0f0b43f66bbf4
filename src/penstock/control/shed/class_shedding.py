"""What a class sheds, decided over all its queries at once; a grant carries out its query's part.

When a query has its turn, the class's shedder looks at what waits for it, segment by segment, and at what
the other queries will have waiting at theirs, and keeps what the turns of one cycle hold. What it keeps of
this query's segments is the grant's plan; the parts of the others are decided with their own grants.
Where rows themselves are weighed, their columns are read; of the others' rows a sample of the last is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.config.shedding import SemanticSettings, WindowSettings
from penstock.control.backlog.row_values import (
    FetchedValues,
    Inside,
    Look,
    RowValues,
    inside,
    late_part,
)
from penstock.control.backlog.waiting import Cut, cut
from penstock.control.measure.sic import SicLedger
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.turns import Turn
from penstock.control.shed.by_window import PURE_WINDOWS, Fates, begun, fates, highest, kept_windows, only_new
from penstock.control.shed.by_worth import grouped, levels, sampled, spread
from penstock.control.shed.room import Room, Rooms
from penstock.control.state.classes import GovernedClass
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning
from penstock.grants.plans import KEEP_ALL, SCALE, ChosenPlan, KeyPlan, ShedPlan, UtilityPlan, WindowPlan
from penstock.grants.plans.sample import FEW_SEGMENTS
from penstock.grants.plans.values import Values, keep_best
from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.policies.shedding.balance_sic import BalanceSicConfig, BalanceSicShedder
from penstock.policies.shedding.base import ShedDecision, Shedder, ShedObservation
from penstock.vocabulary.model import Admission, FloatArray
from penstock.vocabulary.moment import Moment


@dataclass(frozen=True, slots=True)
class Chosen:
    """A query's part of a decision.

    Attributes:
        cut: Where the grant ends, and what of it is late.
        plans: By reader.
        rows: That are kept.
        shed: By reader, rows that are not late and are shed, as far as coins can be foreseen.
        seen: What the shedder saw.
        decision: The whole of what it decided.
    """

    cut: Cut
    plans: Mapping[str, ShedPlan]
    rows: int
    shed: Mapping[str, int]
    seen: ShedObservation
    decision: ShedDecision


class ClassShedding:
    """Chooses what of a query's waiting segments is kept.

    Args:
        ledger: The queries' SIC.
        paths: Where queries stand on the ways of their rows.
        tuning: Figures.
    """

    def __init__(self, ledger: SicLedger, paths: Paths, tuning: Tuning = TUNING) -> None:
        self._paths, self._rooms, self._tuning = paths, Rooms(ledger, tuning), tuning
        self.values: dict[str, RowValues] = {}
        """By class, what was looked up in its waiting rows."""
        self._long_s: dict[str, float] = {}
        """By query, how long its last batch was to be, where it may be longer than its turn: by worth if its
        rows are better than the others', and to make up for poor batches."""
        self._seen: dict[str, Values] = {}
        """By query, what a sample of the rows of its last grant was worth."""

    def forget(self, query: str) -> None:
        """A query is gone for good."""
        self._long_s.pop(query, None)
        self._seen.pop(query, None)

    def take_in(self, cls: str, fetched: FetchedValues) -> None:
        """Values of rows that the shedder of a class needed."""
        self.values.setdefault(cls, RowValues()).take_in(fetched)

    def choose(
        self,
        governed: GovernedClass,
        queries: Sequence[Query],
        grant: Admission,
        turn: Turn,
        most_rows: float,
        at: Moment,
    ) -> Chosen | None:
        """A query's part of what its class keeps.

        Args:
            governed: The class.
            queries: The queries of the class, the one to be granted first.
            grant: What the manager says, of which only what is late counts here.
            turn: How long grants of the class's queries may be.
            most_rows: How many rows the grant may have.
            at: Now.

        Returns:
            `None` if it is not for the shedder to decide: the class has none or is in a dry run, what the
            query's batches cost is still learned, or all that waits fits into the class's turns.

        Raises:
            RowsNeededError: The shedder must know values of rows first.
        """
        query, waiting, shedder = queries[0], queries[0].backlog.waiting, governed.shedder
        if shedder is None or governed.cycle.dry_run or not query.cost.ready:
            return None
        # of one that never had rows nobody knows what they cost, and the others are not to wait for that
        queries = [query, *(other for other in queries[1:] if other.cost.ready)]
        # what would be late even so: a batch may be longer than the one that the manager had in mind
        target_s = governed.plant.cls.delay_target_s * self._paths.due_fraction(query.key)
        target_s *= 1.0 - self._tuning.slack_fraction
        uneven = isinstance(governed.settings, SemanticSettings | BalanceSicConfig)
        long_s = self._long_s.get(query.key, 0.0) if uneven else 0.0
        latest_s = at.wall_s + max(turn.of(query.key), long_s) - target_s
        decided = cut(waiting, Admission(at.wall_s, max(grant.shed_before_s, latest_s), 1.0), math.inf)
        tolerated = governed.traits.late_fraction
        if decided.late_rows <= tolerated * (decided.rows + decided.late_rows):
            decided = cut(waiting, Admission(at.wall_s, -math.inf, 1.0), math.inf)
        mine = inside(waiting.parts, decided)
        room = self._rooms.of(governed, queries, mine, turn, at)
        values = self.values.setdefault(governed.name, RowValues())
        values.forget(reader for q in room.queries for reader in q.readers.values())
        chosen = self._decide(governed, shedder, decided, mine, room, values)
        for _ in range(self._tuning.smaller):
            if chosen is None or chosen.rows <= most_rows:
                break
            room = replace(room, capacity_s=room.capacity_s * most_rows / chosen.rows)
            chosen = self._decide(governed, shedder, decided, mine, room, values)
        if chosen is not None and uneven:
            self._long_s[query.key] = query.cost.batch_s(chosen.rows)
        return chosen

    def _decide(
        self,
        governed: GovernedClass,
        shedder: Shedder,
        decided: Cut,
        mine: Sequence[Inside],
        room: Room,
        values: RowValues,
    ) -> Chosen | None:
        if isinstance(governed.settings, WindowSettings):
            return self._by_window(shedder, governed.settings, decided, mine, room, values)
        if room.is_enough:
            return None
        if isinstance(governed.settings, SemanticSettings):
            return self._by_worth(shedder, governed.settings, decided, mine, room, values)
        return self._by_segment(shedder, decided, mine, room)

    def _by_segment(self, shedder: Shedder, decided: Cut, mine: Sequence[Inside], room: Room) -> Chosen:
        part, order = room.parts[0].in_step()
        some = order.size
        if isinstance(shedder, BalanceSicShedder):
            some = max(1, int(np.searchsorted(np.cumsum(part.rows), room.most_rows, side="right")))
        shown = part.only(np.arange(order.size) < some)
        lost_sic = float(part.sic[some:].sum())
        seen = self._rooms.observe(room, [shown, *room.parts[1:]], lost_sic=lost_sic)
        decision = shedder.decide(seen)
        others = decision.keep[shown.rows.size :]
        keep = np.zeros(order.size, np.bool_)
        keep[order[:some]] = decision.keep[: shown.rows.size]
        decision = replace(decision, keep=np.concatenate([keep, others]))
        if decision.unit == "key":
            return _cohort(decided, room.queries[0], mine, seen, decision)
        return _carried_out(decided, mine, seen, decision, shedder.knows_probability)

    def _by_worth(
        self,
        shedder: Shedder,
        settings: SemanticSettings,
        decided: Cut,
        mine: Sequence[Inside],
        room: Room,
        known: RowValues,
    ) -> Chosen:
        """Of this query's rows the best, as many as the shedder keeps of them by levels of utility."""
        query, *others = room.queries
        values = _look(known, query, mine, Look(settings.worth))
        known.check()
        worth = np.concatenate([np.empty(0), *values])
        if worth.size:
            self._seen[query.key] = sampled(worth)
        samples = [self._seen.get(other.key, sampled(worth)) for other in others]
        ends = levels(worth, *samples)
        counted = [grouped(values, ends)]
        counted += [spread(p.rows, s, ends) for p, s in zip(room.parts[1:], samples, strict=True)]
        parts = [p.split(c.segment, c.rows) for p, c in zip(room.parts, counted, strict=True)]
        utility = ends[np.concatenate([c.level for c in counted])]
        key = np.where(utility < 1.0, settings.inside, np.nan)
        details = {"utility": utility} if settings.by == "utility" else {"key": key}
        seen = self._rooms.observe(room, parts, **details)
        decision = shedder.decide(seen)
        rows = int(parts[0].rows[decision.keep[: parts[0].rows.size]].sum())
        least, row_keep = keep_best(worth, rows)
        plan = UtilityPlan(row_keep=row_keep, seed=seen.id, by=settings.worth, least=least)
        kept = np.where(worth > least, 1.0, np.where(worth == least, row_keep / SCALE, 0.0))
        plans = dict.fromkeys(decided.ends, KEEP_ALL if rows == worth.size else plan)
        return Chosen(decided, plans, rows, _shed(mine, kept), seen, decision)

    def _by_window(
        self,
        shedder: Shedder,
        settings: WindowSettings,
        decided: Cut,
        mine: Sequence[Inside],
        room: Room,
        known: RowValues,
    ) -> Chosen | None:
        """Whole windows, out of the query's own part of the capacity; those that have begun first."""
        query = room.queries[0]
        plans = [reader.offset.plan for reader in query.readers.values()]
        if (
            room.is_enough
            and not decided.late_rows
            and not any(isinstance(plan, WindowPlan) for plan in plans)
        ):
            return None
        columns = {r.id: settings.column_of(r.stream.event_time) for r in query.readers.values()}
        looks = {reader: Look(column, settings.size_us) for reader, column in columns.items()}
        whole_upto = _whole_upto(known, query, looks)
        values = _look(known, query, mine, looks)
        late = _look(known, query, late_part([part.part for part in mine], decided), looks)
        known.check()
        before = begun(plans, settings.size_us, whole_upto)
        numbers = _joined(values)
        found = fates(numbers, np.unique(_joined(late)), before)
        if room.is_enough and not found.broken.any():
            return None
        counted = grouped(values, found.number)
        part = room.parts[0].split(counted.segment, counted.rows)
        fresh, go_on = found.fresh[counted.level], found.go_on[counted.level]
        cost_s, loads_s = float(room.costs_s[0]), room.loads_s
        share_s = loads_s[0] if room.is_enough else room.capacity_s * loads_s[0] / float(loads_s.sum())
        seen = self._rooms.observe(
            room,
            [part.only(fresh)],
            max(0.0, share_s - cost_s * float(part.rows[go_on].sum())),
            lost_sic=float(part.sic[found.broken[counted.level]].sum()),
            window=found.number[counted.level[fresh]] % PURE_WINDOWS,
        )
        decision = shedder.decide(seen)
        kept = found.go_on.copy()
        kept[counted.level[fresh][decision.keep]] = True
        decision = replace(decision, reason=decision.reason + _settled(found))
        of_row = kept[np.searchsorted(found.number, numbers)]
        rows, shed = int(of_row.sum()), _shed(mine, of_row)
        if rows == numbers.size and only_new(numbers, before):
            return Chosen(decided, dict.fromkeys(columns, KEEP_ALL), rows, shed, seen, decision)
        windows = kept_windows(found, kept, before)
        with_kept = np.unique(counted.segment[kept[counted.level]])
        chosen = {
            reader: WindowPlan(
                by=column,
                size_us=settings.size_us,
                windows=windows,
                decided=highest(found.number, before),
                chosen=_places(mine, with_kept, reader),
            )
            for reader, column in columns.items()
        }
        return Chosen(decided, chosen, rows, shed, seen, decision)


def _whole_upto(known: RowValues, query: Query, looks: Mapping[str, Look]) -> int | None:
    """The window of the last row that was kept with all others, where all were."""
    found = [
        known.at(reader.stream.id, p, end - 1, looks[reader.id])
        for reader in query.readers.values()
        for p, end in reader.positions.items()
        if reader.offset.plan.keeps_all and reader.offset.grant and end > 0
    ]
    return max((number for number in found if number is not None), default=None)


def _look(
    known: RowValues, query: Query, parts: Sequence[Inside], look: Look | Mapping[str, Look]
) -> list[Values | IntArray]:
    """Values of rows, an array a segment."""
    found: list[Values | IntArray] = []
    for part in parts:
        reader = part.part.reader
        what = look if isinstance(look, Look) else look[reader]
        found += known.of(query.readers[reader].stream.id, part, what)
    return found


def _carried_out(
    decided: Cut, mine: Sequence[Inside], seen: ShedObservation, decision: ShedDecision, random: bool
) -> Chosen:
    """The plans of a query's readers, by the first of a decision's batches, which are its segments."""
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in mine)])
    keep = decision.keep[: rows.size]
    kept_rows, all_rows = int(rows[keep].sum()), int(rows.sum())
    shed = _shed(mine, np.repeat(keep, rows))
    chosen = {reader: _places(mine, np.flatnonzero(keep), reader) for reader in shed}
    if kept_rows == all_rows:
        return Chosen(decided, dict.fromkeys(chosen, KEEP_ALL), kept_rows, shed, seen, decision)
    part = float(decision.keep.mean()) if random else 0.0
    drawn = {reader: _drawn(mine, keep, reader, part) for reader in chosen}
    plans = {reader: ChosenPlan(chosen=firsts, drawn=drawn[reader]) for reader, firsts in chosen.items()}
    return Chosen(decided, plans, kept_rows, shed, seen, decision)


def _drawn(mine: Sequence[Inside], keep: BoolArray, reader: str, part: float) -> int:
    """Where coins chose: for how many rows of a reader one that is kept stands, as 1 / (drawn / SCALE).

    Coins fall over the segments of the whole class. A reader of which they may well have left none has no
    known chance: when they did, nothing stood for its rows.

    Args:
        mine: The segments of all readers of the query.
        keep: Of each, whether it is kept.
        reader: Which.
        part: Of the class's segments that were kept.
    """
    own = np.repeat([part.part.reader == reader for part in mine], [part.rows.size for part in mine])
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in mine)])[own]
    kept_rows = int(rows[keep[own]].sum())
    if not kept_rows or part * rows.size < FEW_SEGMENTS:
        return 0
    return max(1, round(kept_rows / int(rows.sum()) * SCALE))


def _cohort(
    decided: Cut, query: Query, mine: Sequence[Inside], seen: ShedObservation, decision: ShedDecision
) -> Chosen:
    """The same part of the keys in every stream, and the same keys as long as the seed is the same."""
    part = decision.keep_probability or 0.0
    plans = {
        reader.id: KeyPlan(key_keep=_buckets(part, reader.stream.key_buckets), seed=decision.seed or 0)
        for reader in query.readers.values()
    }
    shed = _shed(mine, np.full(sum(int(each.rows.sum()) for each in mine), part))
    return Chosen(decided, plans, round(part * decided.rows), shed, seen, decision)


def _buckets(part: float, buckets: int) -> int:
    """How many buckets are kept: one at least, or no key would ever have a result."""
    return max(1, round(part * buckets)) if part > 0 else 0


def _shed(mine: Sequence[Inside], kept: FloatArray | BoolArray) -> dict[str, int]:
    """By reader, how many rows are shed; `kept` is by row, one where it is kept."""
    shed: dict[str, float] = {}
    at = 0
    for part in mine:
        count, reader = int(part.rows.sum()), part.part.reader
        shed[reader] = shed.get(reader, 0.0) + count - float(kept[at : at + count].sum())
        at += count
    return {reader: round(rows) for reader, rows in shed.items()}


def _places(mine: Sequence[Inside], segments: IntArray, reader: str) -> dict[int, tuple[int, ...]]:
    """By partition of a reader, where some of the segments begin, which are numbered over all partitions."""
    found: dict[int, tuple[int, ...]] = {}
    before = 0
    for part in mine:
        if part.part.reader == reader:
            own = segments[(segments >= before) & (segments < before + part.segment.size)] - before
            found[part.part.partition] = tuple(part.segment[own].tolist())
        before += part.segment.size
    return found


def _settled(found: Fates) -> str:
    """What of a decision about windows was settled before."""
    said = [(int(found.go_on.sum()), "begun before go on"), (int(found.broken.sum()), "broken ones are shed")]
    return "".join(f"; {count} {what}" for count, what in said if count)


def _joined(arrays: Sequence[Values | IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *arrays]).astype(np.int64)
