"""Deadline, our own load manager: rows wait in the log, and a grant admits rows that can be in time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.policies.load.base import Manager, ManagerConfig
from penstock.policies.load.headroom import from_busy_time
from penstock.vocabulary.errors import InvalidInputError, require_positive
from penstock.vocabulary.model import (
    Admission,
    BatchTiming,
    Decision,
    Expected,
    ManagerTraits,
    Observation,
    WaitingRows,
)

_MARGIN_MEMORY_TARGETS = 20.0
"""Delay targets after which a learned margin has decayed to a third."""

_MOST_MARGIN = 0.8
"""The largest margin, as a part of the target."""
_MOST_BATCH_MARGIN = 0.25
"""The largest margin where grants are micro-batches. A batch takes up to half of the target, and a larger
margin would leave no rows to admit."""


_MAY_BE_ZERO = ("late_fraction", "overrun_fraction")
_FRACTIONS = ("work_ahead_fraction", "margin_fraction", "grant_fraction", *_MAY_BE_ZERO)


@dataclass(frozen=True, slots=True)
class DeadlineConfig(ManagerConfig):
    """Deadline's settings, as fractions of the delay target where they are times.

    Attributes:
        victims: Which rows are shed when not all can be in time: a uniform sample of the rows that must be
            decided about (unbiased results), or the oldest of them.
        work_ahead_fraction: How much work is kept inside the network, so that the network never runs dry and
            batches stay full.
        margin_fraction: The least slack between the planned completion and the target. The slack grows if
            measured delays exceed the target (batches, unfair schedulers), and shrinks again slowly.
        grant_fraction: The time between two grants.
        memory_fraction: How fast measured capacity is forgotten, in delay targets.
        late_fraction: Part of a grant's rows that may be late. Up to this part, hopeless rows are sampled
            with the other rows instead of being shed. Every row then has a known chance, which
            estimates need.
        overrun_fraction: Part by which a batch and the wait for the next one may take longer than planned
            before undecided rows are late. Rows are decided about earlier by this part, and on Spark turns
            are shorter by this part.
    """

    max_drop_fraction: float = 1.0
    victims: Literal["uniform", "oldest"] = "uniform"
    work_ahead_fraction: float = 0.05
    margin_fraction: float = 0.02
    grant_fraction: float = 0.025
    memory_fraction: float = 0.5
    late_fraction: float = 0.0
    overrun_fraction: float = 0.0

    def __post_init__(self) -> None:
        ManagerConfig.__post_init__(self)
        if self.victims not in ("uniform", "oldest"):
            raise InvalidInputError(
                "victims are 'uniform' or 'oldest'", repr(self.victims), "uniform is unbiased"
            )
        for name in _FRACTIONS:
            value = getattr(self, name)
            if not 0.0 < value < 0.5 and (value != 0.0 or name not in _MAY_BE_ZERO):
                raise InvalidInputError(
                    f"{name} lies between 0 and 0.5", value, "it is a part of the delay target"
                )
        require_positive("memory_fraction", self.memory_fraction, "0.5 is usual")

    def traits(self) -> ManagerTraits:
        return ManagerTraits(
            gives_grants=True,
            overrun_fraction=self.overrun_fraction,
            late_fraction=self.late_fraction,
            period_fraction=self.grant_fraction,
        )

    def build(self) -> DeadlineManager:
        return DeadlineManager(self)


@dataclass(slots=True)
class DeadlineState:
    headroom: float | None = None
    margin_s: float = 0.0


class DeadlineManager(Manager[DeadlineConfig, DeadlineState]):
    """Grants rows that complete in time, sheds rows that would be late, leaves the others undecided.

    Let rows_per_s = headroom / cost. The work that was admitted before takes ahead_s = network_load_s /
    headroom. After the grant the network should hold full_s = work_ahead_fraction * target + period_s.

        room_rows    = (full_s - ahead_s) * rows_per_s
        hopeless     : arrival < now + ahead_s + margin - target     shed: these rows are late already
        must decide  : arrival < now + full_s + margin - target      they would be late at the next grant

    A plant that grants micro-batches says what a batch costs (`BatchTiming`). All rows of a batch complete at
    its end. Then ahead_s is the time of the batch itself, full_s is the end of the next batch, and

        room_rows    = (length_s - fixed_s) / row_s

    If more rows must be decided about than there is room for, the manager admits a uniform sample of them
    that fits (victims "uniform"), or the newest of them that fit (victims "oldest"). Otherwise it admits the
    oldest waiting rows until the room is used, and sheds nothing. The headroom is measured, never given.
    """

    name = "deadline"
    state_type = DeadlineState

    def decide(self, observation: Observation) -> Decision:
        config, target_s = self.config, observation.delay_target_s
        memory_s = config.memory_fraction * target_s
        before = self.state.headroom
        before = None if before is None else before * observation.capacity_scale
        self.state.headroom = from_busy_time(
            before, observation.work_s, observation.busy_s, observation.period_s, memory_s
        )
        headroom, waiting = self.state.headroom, observation.waiting
        if waiting.rows.size == 0:
            return self._decision(observation, Admission(-math.inf, -math.inf, 1.0), 0.0, "nothing waits")
        if observation.batch is not None:
            ahead_s, full_s, room_rows = _room_in_batch(observation.batch, waiting.total)
        elif headroom is None or observation.cost_per_row_s is None:
            return self._first_grant(observation)
        else:
            ahead_s = observation.network_load_s / headroom
            full_s = config.work_ahead_fraction * target_s + observation.period_s
            # an idle network takes one row, however slow the row is: a row that costs more than full_s would
            # otherwise never be admitted
            least = 0.0 if ahead_s > 0 else 1.0
            room_rows = max(least, (full_s - ahead_s) * headroom / observation.cost_per_row_s)
        margin_s = self._margin(observation, full_s)
        hopeless_s = observation.now_s + min(_newest(observation), ahead_s + margin_s - target_s)
        next_s = max(full_s, ahead_s) * (1.0 + config.overrun_fraction)
        must_s = observation.now_s + min(0.0, next_s + margin_s - target_s)
        grant, admitted = self._grant(waiting, room_rows, hopeless_s, must_s)
        reason = (
            f"room for {room_rows:.0f} of {waiting.total:.0f} waiting rows, "
            f"{ahead_s:.2f} s of work ahead, headroom {headroom or 0.0:.3f}"
        )
        return self._decision(observation, grant, admitted, reason)

    def _first_grant(self, observation: Observation) -> Decision:
        """Admits the rows that arrived first, however many wait, because no cost is known yet."""
        waiting = observation.waiting
        cut_s = float(waiting.arrival_s[0]) + self.config.work_ahead_fraction * observation.delay_target_s
        admitted = float(waiting.rows[waiting.arrival_s <= cut_s].sum())
        cut_s = min(cut_s, observation.now_s)
        return self._decision(
            observation, Admission(cut_s, -math.inf, 1.0), admitted, "first rows, to learn their cost"
        )

    def _margin(self, observation: Observation, full_s: float) -> float:
        """Learns the margin. It rises with the overrun of the measured p95 delay, and decays slowly."""
        state, target_s, latest_s = self.state, observation.delay_target_s, observation.delay.p95_s
        state.margin_s *= math.exp(-observation.period_s / (_MARGIN_MEMORY_TARGETS * target_s))
        if latest_s is not None and latest_s > target_s:
            state.margin_s += (latest_s - target_s) * observation.period_s / full_s
        most_s = _MOST_MARGIN * target_s if observation.batch is None else _MOST_BATCH_MARGIN * target_s
        state.margin_s = min(max(state.margin_s, self.config.margin_fraction * target_s), most_s)
        return state.margin_s

    def _grant(
        self, waiting: WaitingRows, room: float, hopeless_s: float, must_s: float
    ) -> tuple[Admission, float]:
        arrival_s, upto = waiting.arrival_s, np.cumsum(waiting.rows)
        lost = _rows_before(arrival_s, upto, hopeless_s)
        if 0.0 < lost <= self.config.late_fraction * _rows_before(arrival_s, upto, must_s):
            lost, hopeless_s = 0.0, -math.inf
        must = _rows_before(arrival_s, upto, must_s) - lost
        if must <= room:
            # everything urgent fits: admit the oldest rows until the room is used, shed nothing else
            last = min(int(np.searchsorted(upto, lost + room)), arrival_s.size - 1)
            cut_s = max(float(arrival_s[last]), hopeless_s)
            return Admission(cut_s, hopeless_s, 1.0, room), min(room, float(upto[-1]) - lost)
        if self.config.victims == "uniform":
            keep = self.clamp_keep(room / must)
            return Admission(must_s, hopeless_s, keep), keep * must
        first_kept = int(np.searchsorted(upto, lost + must - room, side="left"))
        return Admission(must_s, float(arrival_s[min(first_kept, arrival_s.size - 1)]), 1.0), room

    def _decision(self, observation: Observation, grant: Admission, admitted: float, reason: str) -> Decision:
        expected = Expected(observation.delay_target_s, float(admitted))
        return Decision(
            observation.id, grant.keep_fraction, reason, expected, grant=grant, headroom=self.state.headroom
        )


def _newest(observation: Observation) -> float:
    """The moment, relative to now, since which rows must have arrived so that they are never hopeless.

    If a micro-batch takes longer than the target, no row can be in time. The newest rows are admitted all the
    same, because late results are better than no results.
    """
    return 0.0 if observation.batch is None else -observation.batch.cycle_s / 2


def _room_in_batch(batch: BatchTiming, waiting_rows: float) -> tuple[float, float, float]:
    """When this batch ends, when the next batch ends, and how many rows this batch holds, at least one."""
    room_rows = max(1.0, (batch.length_s - batch.fixed_s) / batch.row_s)
    ahead_s = batch.fixed_s + batch.row_s * min(room_rows, waiting_rows)
    return ahead_s, batch.cycle_s + batch.length_s, room_rows


def _rows_before(arrival_s: np.ndarray, upto: np.ndarray, before_s: float) -> float:
    """Counts the rows that arrived before a moment, to the resolution of the headers."""
    i = int(np.searchsorted(arrival_s, before_s, side="left"))
    return float(upto[i - 1]) if i > 0 else 0.0
