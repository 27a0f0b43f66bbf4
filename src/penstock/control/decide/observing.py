"""One class as a plant: counts what happens between two control instants and reports it as an observation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.control.measure.delays import DelayLedger, stats
from penstock.vocabulary.model import BatchTiming, Decision, FloatArray, Observation, QueryClass, WaitingRows


class ClassPlant:
    """What a load manager sees of a class on Spark, and what it last decided.

    Load is batch time: a class that has share 0.6 of the turns has a headroom of about 0.6.
    """

    def __init__(self, cls: QueryClass, timer_s: float) -> None:
        self.cls = cls
        self.delays, self.results = DelayLedger(), DelayLedger()
        """From a row's arrival to the end of its batch, and to the batch that sends out what it closed."""
        self.keep_fraction = 1.0
        self.decision: Decision | None = None
        self.pending: Observation | None = None
        self.last_s = timer_s
        """On the timer: a period is a duration, and the clock may go back."""
        self.next_id = 1
        self.capacity_scale = 1.0
        """What its share was multiplied by since the last observation, which tells the manager."""
        self._clear()

    def _clear(self) -> None:
        self.offered: dict[str, int] = {}
        """Rows by query."""
        self.admitted_rows = self.shed_rows = self.departed_rows = 0
        self.work_s = self.busy_s = 0.0
        self._delay_s: list[FloatArray] = []
        self._delay_rows: list[FloatArray] = []
        self._output_s: dict[str, tuple[float, float]] = {}

    def came(self, query: str, rows: int) -> None:
        """Rows arrived for a query."""
        self.offered[query] = self.offered.get(query, 0) + rows

    def sent_out(self, delays_s: FloatArray, rows: FloatArray) -> None:
        """Answers left, so long after the rows arrived that they had to wait for."""
        self.results.add(delays_s, rows)

    def completed(self, query: str, delays_s: FloatArray, rows: FloatArray, learned_from: bool) -> None:
        """Rows of a query whose batch is done; delays of its warm-up are reported, not learned from."""
        self.delays.add(delays_s, rows)
        if not learned_from:
            self.departed_rows += round(float(rows.sum()))
            return
        self._delay_s.append(delays_s)
        self._delay_rows.append(rows)
        total_s, count = self._output_s.get(query, (0.0, 0.0))
        self._output_s[query] = total_s + float(delays_s @ rows), count + float(rows.sum())
        self.departed_rows += round(float(rows.sum()))

    def prepare(
        self,
        now_s: float,
        timer_s: float,
        queries: list[str],
        waiting: WaitingRows,
        waiting_rows: Mapping[str, int],
        costs_s: Mapping[str, float],
        running_s: float,
        batch: BatchTiming | None,
    ) -> None:
        """Closes the period: what `observe` will report.

        Args:
            now_s: The moment of the observation, as arrival times are.
            timer_s: The same moment on the timer.
            queries: The class's queries, in a fixed order: its outputs.
            waiting: What the grant is for, by arrival.
            waiting_rows: What waits in the whole class, by query.
            costs_s: By query, batch time that a row costs in a full batch; where it is not known yet, rows
                count as those of the others.
            running_s: Expected rest of the batches that run.
            batch: What a batch of the query to be granted costs.
        """
        # two grants within a moment must not make a rate infinite
        period_s = max(timer_s - self.last_s, 1e-3)
        rows = np.concatenate(self._delay_rows) if self._delay_rows else np.empty(0)
        delays = np.concatenate(self._delay_s) if self._delay_s else np.empty(0)
        outputs = [self._output_s.get(query, (0.0, 0.0)) for query in queries]
        offered_s, waiting_s = _load_s(self.offered, costs_s), _load_s(waiting_rows, costs_s)
        offered_rows, rows_waiting = sum(self.offered.values()), sum(waiting_rows.values())
        cost_s = None if not costs_s else sum(costs_s.values()) / len(costs_s)
        if cost_s is not None and offered_rows + rows_waiting:
            cost_s = (offered_s + waiting_s) / (offered_rows + rows_waiting)
        self.pending = Observation(
            id=self.next_id,
            cls=self.cls.name,
            now_s=now_s,
            period_s=period_s,
            delay_target_s=self.cls.delay_target_s,
            keep_fraction=self.keep_fraction,
            offered_rows=offered_rows,
            admitted_rows=self.admitted_rows,
            shed_rows=self.shed_rows,
            departed_rows=self.departed_rows,
            waiting_rows=rows_waiting,
            offered_load=offered_s / period_s,
            queued_load_s=running_s + self.keep_fraction * waiting_s,
            network_load_s=running_s,
            cost_per_row_s=cost_s,
            work_s=self.work_s,
            busy_s=self.busy_s,
            delay=stats(delays, rows),
            output_delay_s=np.array([total / count if count else np.nan for total, count in outputs]),
            waiting=waiting,
            batch=batch,
            capacity_scale=self.capacity_scale,
        )
        self.capacity_scale = 1.0
        self.next_id += 1
        self.last_s = timer_s
        self._clear()

    def observe(self) -> Observation | None:
        pending, self.pending = self.pending, None
        return pending

    def apply(self, decision: Decision) -> None:
        self.decision = decision
        self.keep_fraction = decision.keep_fraction


def _load_s(rows: Mapping[str, int], costs_s: Mapping[str, float]) -> float:
    """Batch time of rows, each at the cost of its query (pham2016 eq. 3.1)."""
    usual_s = sum(costs_s.values()) / len(costs_s) if costs_s else 0.0
    return sum(count * costs_s.get(query, usual_s) for query, count in rows.items())
