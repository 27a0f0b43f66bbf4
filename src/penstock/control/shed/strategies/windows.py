"""Windows are kept or shed whole: times of rows are read, and the shedder sees undecided windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.config.shedding import WindowSettings
from penstock.control.backlog.row_values import Inside, Look, late_part
from penstock.control.shed.capacity_view import CapacityView, QueryBatches, Shown
from penstock.control.shed.strategies.base import (
    GrantedRows,
    KeptRows,
    by_segment,
    first_positions,
    rows_of,
    shed_by_reader,
)
from penstock.control.shed.strategies.utility_levels import LevelCounts, count_by_level
from penstock.control.shed.strategies.window_history import (
    WaitingWindows,
    WindowHistory,
    highest_decided,
    history_of,
    is_past,
    waiting_windows,
    windows_of_plan,
)
from penstock.grants.plans import KEEP_ALL, WindowPlan
from penstock.grants.plans.values import Values
from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.policies.shedding.base import ShedDecision

SHEDDERS_WINDOWS = 1 << 40
"""The shedder takes window numbers below this: it numbers the windows of several queries consecutively."""


@dataclass(frozen=True, slots=True)
class WindowStrategy:
    """Shows the windows of the query that is being granted, for the query's own part of the capacity.

    Windows that an earlier grant began to keep come first. For the capacity that is left, the shedder chooses
    among windows about which no grant has decided yet.

    Args:
        settings: How long windows are, and over which column.
    """

    settings: WindowSettings

    @property
    def may_exceed_turn(self) -> bool:
        return self.settings.traits.may_exceed_turn

    def offer(self, granted: GrantedRows, view: CapacityView) -> WindowOffer | None:
        plans = [reader.offset.plan for reader in granted.query.readers.values()]
        decided_before = any(plan.carries_over for plan in plans)
        if view.is_enough and not granted.cut.late_rows and not decided_before:
            return None
        columns = {
            reader.id: self.settings.column_of(reader.stream.event_time)
            for reader in granted.query.readers.values()
        }
        looks = {reader: Look(column, self.settings.size_us) for reader, column in columns.items()}
        whole_upto = _whole_upto(granted, looks)
        values = _window_numbers(granted, granted.segments, looks)
        late_segments = late_part([each.part for each in granted.segments], granted.cut)
        late = _window_numbers(granted, late_segments, looks)
        granted.values.check()
        history = history_of(plans, self.settings.size_us, whole_upto)
        numbers = _joined(values)
        windows = waiting_windows(numbers, np.unique(_joined(late)), history)
        if view.is_enough and not windows.broken.any():
            return None
        counts = count_by_level(values, windows.number)
        batches = view.batches[0]
        batches = batches.split(counts.segment, counts.in_positions(batches.rows))
        capacity_s = _capacity_s(view) - float(view.costs_s[0]) * float(
            batches.rows[windows.continued[counts.level]].sum()
        )
        return WindowOffer(
            granted, self.settings.size_us, columns, history, windows, counts, batches, values, capacity_s
        )


@dataclass(frozen=True, slots=True, eq=False)
class WindowOffer:
    """Windows of the query that is being granted.

    Attributes:
        granted: The waiting rows of the query.
        size_us: How long a window is.
        columns: By reader, the column with the time of a row.
        history: What earlier grants decided about windows.
        windows: The windows of the waiting rows.
        counts: How many rows of each segment are in each window.
        batches: The rows of a segment that are in one window, as one batch.
        values: By segment, the numbers of the windows of its rows.
        capacity_s: The query's part of the capacity, less the load of the windows that are continued.
    """

    granted: GrantedRows
    size_us: int
    columns: Mapping[str, str]
    history: WindowHistory
    windows: WaitingWindows
    counts: LevelCounts
    batches: QueryBatches
    values: Sequence[Values | IntArray]
    capacity_s: float

    @property
    def shown(self) -> Shown:
        window = self.counts.level
        undecided = self.windows.undecided[window]
        return Shown(
            [self.batches.only(undecided)],
            max(0.0, self.capacity_s),
            lost_sic=float(self.batches.sic[self.windows.broken[window]].sum()),
            details={"window": self.windows.number[window[undecided]] % SHEDDERS_WINDOWS},
        )

    def carry_out(self, decision: ShedDecision) -> KeptRows:
        windows, window = self.windows, self.counts.level
        kept = windows.continued.copy()
        kept[window[windows.undecided[window]][decision.keep]] = True
        segments, numbers = self.granted.segments, _joined(self.values)
        positions, kept_rows = rows_of(segments), kept[np.searchsorted(windows.number, numbers)]
        decision = replace(decision, reason=decision.reason + _settled_before(windows))
        if kept_rows.all() and is_past(self.history, numbers):
            plans = dict.fromkeys(self.columns, KEEP_ALL)
            return KeptRows(plans, int(positions.sum()), dict.fromkeys(self.columns, 0), decision)
        # a segment without a kept row is not opened: all its positions are shed
        opened = by_segment(self.values, kept_rows) > 0
        shed = np.where(opened, by_segment(self.values, ~kept_rows), positions)
        rows = int(positions.sum()) - int(shed.sum())
        return KeptRows(self._plans(kept), rows, shed_by_reader(segments, shed), decision)

    def _plans(self, kept: BoolArray) -> dict[str, WindowPlan]:
        named = windows_of_plan(self.windows, kept, self.history)
        decided = highest_decided(self.windows.number, self.history)
        with_kept_rows = np.unique(self.counts.segment[kept[self.counts.level]])
        return {
            reader: WindowPlan(
                by=column,
                size_us=self.size_us,
                windows=named,
                decided=decided,
                chosen=first_positions(self.granted.segments, with_kept_rows, reader),
            )
            for reader, column in self.columns.items()
        }


def _capacity_s(view: CapacityView) -> float:
    """The first query's part of the capacity, in proportion to loads. If all fits, the part is its load."""
    load_s = float(view.loads_s[0])
    return load_s if view.is_enough else view.capacity_s * load_s / float(view.loads_s.sum())


def _whole_upto(granted: GrantedRows, looks: Mapping[str, Look]) -> int | None:
    """The window of the last row before this grant, where the reader's last plan kept all rows."""
    found = [
        granted.values.at(reader.stream.id, p, end - 1, looks[reader.id])
        for reader in granted.query.readers.values()
        for p, end in reader.positions.items()
        if reader.offset.plan.keeps_all and reader.offset.grant and end > 0
    ]
    return max((number for number in found if number is not None), default=None)


def _window_numbers(
    granted: GrantedRows, segments: Sequence[Inside], looks: Mapping[str, Look]
) -> list[Values | IntArray]:
    """By segment, the window numbers of its rows; numbers that are not known are noted as missing."""
    found: list[Values | IntArray] = []
    for part in segments:
        reader = part.part.reader
        found += granted.values.of(granted.query.readers[reader].stream.id, part, looks[reader])
    return found


def _settled_before(windows: WaitingWindows) -> str:
    """The part of the reason about windows that were decided before the shedder was asked."""
    counts = [
        (int(windows.continued.sum()), "begun before go on"),
        (int(windows.broken.sum()), "broken ones are shed"),
    ]
    return "".join(f"; {count} {what}" for count, what in counts if count)


def _joined(numbers: Sequence[Values | IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *numbers]).astype(np.int64)
