"""One class as a plant: counts what happens between two control instants and reports it as an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.control.measure.delays import DelayLedger, stats
from penstock.vocabulary.model import BatchTiming, Decision, FloatArray, Observation, QueryClass, WaitingRows
from penstock.vocabulary.moment import Moment


@dataclass(slots=True)
class Period:
    """What happened in a class since its last observation.

    Attributes:
        offered: By query, the number of rows that arrived.
        admitted_rows: Number of rows that grants admitted.
        shed_rows: Number of rows that grants shed.
        departed_rows: Number of rows whose batch is complete.
        work_s: Total length of the batches.
        busy_s: Time in which a batch ran or rows waited.
        delays_s: By complete batch, the delays of its rows.
        delay_rows: By complete batch, how many rows have each delay.
        outputs: By query, the sum of its rows' delays, and the number of its rows.
    """

    offered: dict[str, int] = field(default_factory=dict)
    admitted_rows: int = 0
    shed_rows: int = 0
    departed_rows: int = 0
    work_s: float = 0.0
    busy_s: float = 0.0
    delays_s: list[FloatArray] = field(default_factory=list)
    delay_rows: list[FloatArray] = field(default_factory=list)
    outputs: dict[str, tuple[float, float]] = field(default_factory=dict)

    def completed(self, query: str, delays_s: FloatArray, rows: FloatArray) -> None:
        """Books the delays of the rows of a complete batch."""
        self.delays_s.append(delays_s)
        self.delay_rows.append(rows)
        total_s, count = self.outputs.get(query, (0.0, 0.0))
        self.outputs[query] = total_s + float(delays_s @ rows), count + float(rows.sum())


@dataclass(frozen=True, slots=True)
class ClassView:
    """What the control plane knows of a class at a control instant, besides the counts of a `Period`.

    Attributes:
        queries: The class's queries in a fixed order. An observation has one output delay for each query.
        waiting: By arrival, the rows that wait for the query to be granted.
        waiting_rows: By query of the class, the number of rows that wait.
        costs_s: By query, the batch time of one row in a full batch. A query whose cost is not known yet is
            missing: its rows cost the mean of the other queries.
        running_s: Time that the running batches still take, as expected.
        batch: The cost of a batch of the query to be granted.
    """

    queries: Sequence[str]
    waiting: WaitingRows
    waiting_rows: Mapping[str, int]
    costs_s: Mapping[str, float]
    running_s: float
    batch: BatchTiming | None = None


class ClassPlant:
    """Makes a load manager's observations of a class on Spark, and keeps the manager's last decision.

    Load is batch time: a class that has share 0.6 of the turns has a headroom of about 0.6.

    Args:
        cls: The class.
        timer_s: The present time on the timer.
    """

    def __init__(self, cls: QueryClass, timer_s: float) -> None:
        self.cls = cls
        self.delays, self.results = DelayLedger(), DelayLedger()
        """Row delays end with the row's batch. Result delays end with the batch that sends out the answer."""
        self.keep_fraction = 1.0
        self.decision: Decision | None = None
        self.last_s = timer_s
        """Time of the last observation, on the timer. A wall clock may go back, and a period must not."""
        self.next_id = 1
        self.capacity_scale = 1.0
        """Factor by which the class's share has changed since the last observation."""
        self.period = Period()

    def arrived(self, query: str, rows: int) -> None:
        """Counts rows that arrived for a query."""
        self.period.offered[query] = self.period.offered.get(query, 0) + rows

    def decided(self, admitted: int, shed: int) -> None:
        """Counts the rows that a planned batch admits, and the rows that it sheds."""
        self.period.admitted_rows += admitted
        self.period.shed_rows += shed

    def sent_out(self, delays_s: FloatArray, rows: FloatArray) -> None:
        """Books result delays: the time from the arrival of a row to the batch that sent out its answer."""
        self.results.add(delays_s, rows)

    def completed(self, query: str, delays_s: FloatArray, rows: FloatArray, learned_from: bool) -> None:
        """Books the row delays of a complete batch.

        Args:
            query: The query.
            delays_s: Delays.
            rows: By delay, the number of rows.
            learned_from: Whether the manager sees the delays. It does not see those of a query's warm-up.
        """
        self.delays.add(delays_s, rows)
        if learned_from:
            self.period.completed(query, delays_s, rows)
        self.period.departed_rows += round(float(rows.sum()))

    def observe(self, at: Moment, view: ClassView) -> Observation:
        """Returns the observation of the period, and begins the next period.

        Args:
            at: The present time.
            view: What the control plane knows of the class now.
        """
        # two grants within a moment must not make a rate infinite
        period, period_s = self.period, max(at.timer_s - self.last_s, 1e-3)
        rows = np.concatenate(period.delay_rows) if period.delay_rows else np.empty(0)
        delays = np.concatenate(period.delays_s) if period.delays_s else np.empty(0)
        outputs_s = {query: total_s / count for query, (total_s, count) in period.outputs.items() if count}
        costs_s = view.costs_s
        usual_s = sum(costs_s.values()) / len(costs_s) if costs_s else 0.0
        offered_s = _load_s(period.offered, costs_s, usual_s)
        waiting_s = _load_s(view.waiting_rows, costs_s, usual_s)
        offered_rows, rows_waiting = sum(period.offered.values()), sum(view.waiting_rows.values())
        cost_s = usual_s if costs_s else None
        if cost_s is not None and offered_rows + rows_waiting:
            cost_s = (offered_s + waiting_s) / (offered_rows + rows_waiting)
        observation = Observation(
            id=self.next_id,
            cls=self.cls.name,
            now_s=at.wall_s,
            period_s=period_s,
            delay_target_s=self.cls.delay_target_s,
            keep_fraction=self.keep_fraction,
            offered_rows=offered_rows,
            admitted_rows=period.admitted_rows,
            shed_rows=period.shed_rows,
            departed_rows=period.departed_rows,
            waiting_rows=rows_waiting,
            offered_load=offered_s / period_s,
            queued_load_s=view.running_s + self.keep_fraction * waiting_s,
            network_load_s=view.running_s,
            cost_per_row_s=cost_s,
            work_s=period.work_s,
            busy_s=period.busy_s,
            delay=stats(delays, rows),
            output_delay_s=np.array([outputs_s.get(query, np.nan) for query in view.queries]),
            waiting=view.waiting,
            batch=view.batch,
            capacity_scale=self.capacity_scale,
        )
        self.capacity_scale = 1.0
        self.next_id += 1
        self.last_s, self.period = at.timer_s, Period()
        return observation

    def apply(self, decision: Decision) -> None:
        """Puts a decision in force."""
        self.decision = decision
        self.keep_fraction = decision.keep_fraction


def _load_s(rows: Mapping[str, int], costs_s: Mapping[str, float], usual_s: float) -> float:
    """Returns the batch time of rows (pham2016 eq. 3.1).

    Args:
        rows: By query, the number of rows.
        costs_s: By query whose cost is known, the batch time of a row.
        usual_s: Batch time of a row of any other query.
    """
    return sum([count * costs_s.get(query, usual_s) for query, count in rows.items()])
