"""System identification (tu2006 section 4.2): a plant's cost per row and headroom from what it reports.

Two models of the mean delay y of the rows that arrive at a moment, both a quantity divided by the headroom H:

    rows:  y = (q + 1) * c / H        q rows outstanding, c CPU seconds a row          (tu2006 eq. 2)
    load:  y = l / H                  l CPU seconds queued (pham2016 eq. 4.1)

Eq. 2 counts rows in minus tuples out, so it holds only where a row leaves once; the load model holds for
shared operators too. H is fitted by least squares through the origin over the overloaded periods. Any plant
will do: drive it with `keep_everything` above its capacity and identify what it reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Decision, FloatArray, Observation, Plant

Model = Literal["rows", "load"]

FULLY_BUSY_FRACTION = 0.98
"""From this fraction on a period counts as busy throughout; a plant never reports exactly 1."""

FEWEST_PERIODS = 8
"""With fewer overloaded periods than this, the phase of a single batch would influence the fit."""

LEAVES_ONCE = 1.05
"""Rows count as leaving once up to this many tuples out for each row in; the slack is for rows that were
inside at the start."""

LADDER = (0.96, 0.98, 1.0, 1.02, 1.04)
"""Factors of the fitted headroom whose errors are reported, as tu2006 fig. 6B compares three values."""


@dataclass(frozen=True, slots=True)
class Rung:
    """How well one headroom explains the measured delays. Errors are absolute, in seconds."""

    headroom: float
    error_mean_s: float
    error_max_s: float


@dataclass(frozen=True, slots=True)
class Identification:
    """Parameters of a plant, found by `identify`.

    Attributes:
        cost_per_row_s: c, the mean measured cost over the overloaded periods.
        headroom: H of the model in use.
        model: "rows" if rows leave once, else "load".
        model_error_mean_s: Mean absolute difference between model and measured delay.
        model_error_max_s: Largest absolute difference.
        rows_headroom: H of eq. 2; `None` if rows leave several times, because q means nothing then.
        load_headroom: H of the queued-load model.
        busy_headroom: CPU seconds done in a busy second: H without any delay model.
        periods: Number of overloaded periods that were fitted.
        ladder: Errors of headrooms around the fitted one.
    """

    cost_per_row_s: float
    headroom: float
    model: Model
    model_error_mean_s: float
    model_error_max_s: float
    rows_headroom: float | None
    load_headroom: float
    busy_headroom: float
    periods: int
    ladder: tuple[Rung, ...]

    @property
    def capacity_per_s(self) -> float:
        """Rows a second that the plant can process."""
        return self.headroom / self.cost_per_row_s


@dataclass(frozen=True, slots=True)
class DelaySeries:
    """Measured delays and, beside them, rows and load outstanding when the delayed rows arrived.

    There is one entry for each period with completions. A period reports the delays of rows that completed in
    it, which arrived a delay earlier; the models give the delay of rows that arrive now. While a queue grows
    the two differ by a factor. So outstanding rows and load are taken at the mean arrival time, interpolated
    between the control instants.
    """

    now_s: FloatArray
    """Middle of the period."""
    delay_s: FloatArray
    arrived_s: FloatArray
    queue_rows: FloatArray
    queued_load_s: FloatArray
    overloaded: npt.NDArray[np.bool_]

    def model_s(self, model: Model, cost_per_row_s: float, headroom: float) -> FloatArray:
        """The delay that a model gives for each entry."""
        return self._work_s(model, cost_per_row_s) / headroom

    def _work_s(self, model: Model, cost_per_row_s: float) -> FloatArray:
        return (self.queue_rows + 1.0) * cost_per_row_s if model == "rows" else self.queued_load_s

    def fit(self, model: Model, cost_per_row_s: float) -> float:
        """The headroom with the least squared error over the overloaded periods, through the origin."""
        work_s, delay_s = self._work_s(model, cost_per_row_s)[self.overloaded], self.delay_s[self.overloaded]
        return float(work_s @ work_s / (work_s @ delay_s))

    def rung(self, model: Model, cost_per_row_s: float, headroom: float) -> Rung:
        """The errors of a headroom over the overloaded periods."""
        error_s = np.abs(self.model_s(model, cost_per_row_s, headroom) - self.delay_s)[self.overloaded]
        return Rung(headroom, float(error_s.mean()), float(error_s.max()))


class PassiveManager:
    """A manager that keeps everything, used while a plant is identified."""

    name = "passive"

    def decide(self, observation: Observation) -> Decision:
        return Decision(observation.id, 1.0, "identification keeps everything")

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore(self, snapshot: dict[str, object]) -> None:
        """Does nothing: there is no state."""


def keep_everything(plant: Plant) -> list[Observation]:
    """Runs a plant to its end without shedding and returns its observations."""
    manager, observations = PassiveManager(), []
    while (observation := plant.observe()) is not None:
        observations.append(observation)
        plant.apply(manager.decide(observation))
    return observations


def delay_series(observations: Sequence[Observation]) -> DelaySeries:
    """Aligns measured delays with the rows and load outstanding when the delayed rows arrived."""
    if not observations:
        raise InvalidInputError(
            "identification needs observations", "none", "run the plant for a few seconds first"
        )
    first, completed = observations[0], [o for o in observations if o.delay.mean_s is not None]
    start_s = first.now_s - first.period_s
    at_s = np.array([start_s, *(o.now_s for o in observations)])
    inside = np.cumsum([o.admitted_rows - o.departed_rows for o in observations])
    waiting = np.array([o.waiting_rows * o.keep_fraction for o in observations])
    rows = np.concatenate(([0.0], np.maximum(0.0, inside + waiting)))
    load_s = np.array([0.0, *(o.queued_load_s for o in observations)])
    middle_s = np.array([o.now_s - o.period_s / 2 for o in completed])
    delay_s = np.array([o.delay.mean_s for o in completed], np.float64)
    arrived_s = middle_s - delay_s
    # Below one period of delay, a plant that is busy with half-empty batches looks like an overloaded one.
    queueing = np.array([o.busy_s >= FULLY_BUSY_FRACTION * o.period_s for o in completed], np.bool_)
    queueing &= delay_s >= np.array([o.period_s for o in completed])
    return DelaySeries(
        middle_s,
        delay_s,
        arrived_s,
        np.interp(arrived_s, at_s, rows),
        np.interp(arrived_s, at_s, load_s),
        queueing & (arrived_s >= start_s),
    )


def identify(observations: Sequence[Observation]) -> Identification:
    """Fits cost and headroom to a run in which the plant was overloaded.

    Args:
        observations: A run from a quiet start, in order, whose input exceeded the capacity for some seconds.

    Raises:
        InvalidInputError: The plant was never overloaded, or too briefly.
    """
    series = delay_series(observations)
    periods = int(series.overloaded.sum())
    if periods < FEWEST_PERIODS:
        raise InvalidInputError(
            f"a plant is identified from at least {FEWEST_PERIODS} overloaded periods "
            "(busy throughout, rows delayed by more than a period)",
            f"{periods} of {len(observations)}",
            "raise the input rate above the capacity, or for longer",
        )
    overloaded = [
        o
        for o, yes in zip(
            (o for o in observations if o.delay.mean_s is not None), series.overloaded, strict=True
        )
        if yes
    ]
    costs_s = [o.cost_per_row_s for o in overloaded if o.cost_per_row_s is not None]
    if not costs_s:
        raise InvalidInputError(
            "a plant is identified from its measured cost per row",
            "no measured cost",
            "let the plant process some rows",
        )
    cost_s = float(np.mean(costs_s))
    admitted, departed = (
        sum(getattr(o, n) for o in observations) for n in ("admitted_rows", "departed_rows")
    )
    model: Model = "rows" if departed <= LEAVES_ONCE * admitted else "load"
    load_headroom = series.fit("load", cost_s)
    rows_headroom = series.fit("rows", cost_s) if model == "rows" else None
    headroom = load_headroom if rows_headroom is None else rows_headroom
    best = series.rung(model, cost_s, headroom)
    return Identification(
        cost_per_row_s=cost_s,
        headroom=headroom,
        model=model,
        model_error_mean_s=best.error_mean_s,
        model_error_max_s=best.error_max_s,
        rows_headroom=rows_headroom,
        load_headroom=load_headroom,
        busy_headroom=sum(o.work_s for o in overloaded) / sum(o.busy_s for o in overloaded),
        periods=periods,
        ladder=tuple(series.rung(model, cost_s, headroom * step) for step in LADDER),
    )


def verify(identified: Identification, observations: Sequence[Observation]) -> Rung:
    """The error of an identified model on another run (tu2006 fig. 7)."""
    series = delay_series(observations)
    if not series.overloaded.any():
        raise InvalidInputError(
            "a model is verified on a run with overloaded periods",
            f"0 of {len(observations)}",
            "raise the input rate above the capacity",
        )
    return series.rung(identified.model, identified.cost_per_row_s, identified.headroom)
