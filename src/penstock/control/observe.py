"""One class as a plant: counts what happens between two control instants and reports it as an observation."""

from __future__ import annotations

import numpy as np

from penstock.control.delays import DelayLedger, stats
from penstock.model import BatchTiming, Decision, FloatArray, Observation, QueryClass, WaitingRows


class ClassPlant:
    """What a load manager sees of a class on Spark, and what it last decided.

    Load is batch time: a class that has share 0.6 of the turns has a headroom of about 0.6.
    """

    def __init__(self, cls: QueryClass, timer_s: float) -> None:
        self.cls = cls
        self.delays, self.results = DelayLedger(), DelayLedger()
        """From a row's arrival to the end of its batch, and to the batch that sends out what it closed."""
        self.marked, self.results_marked = DelayLedger(), DelayLedger()
        """The same since the last `mark`."""
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
        self.offered_rows = self.admitted_rows = self.shed_rows = self.departed_rows = 0
        self.work_s = self.busy_s = 0.0
        self._delay_s: list[FloatArray] = []
        self._delay_rows: list[FloatArray] = []
        self._output_s: dict[str, tuple[float, float]] = {}

    def mark(self) -> None:
        """Begins a new stretch of measurement beside the one over the whole run."""
        self.marked, self.results_marked = DelayLedger(), DelayLedger()

    def sent_out(self, delays_s: FloatArray, rows: FloatArray) -> None:
        """Answers left, so long after the rows arrived that they had to wait for."""
        self.results.add(delays_s, rows)
        self.results_marked.add(delays_s, rows)

    def completed(self, query: str, delays_s: FloatArray, rows: FloatArray, learned_from: bool) -> None:
        """Rows of a query whose batch is done; delays of its warm-up are reported, not learned from."""
        self.delays.add(delays_s, rows)
        self.marked.add(delays_s, rows)
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
        waiting_rows: int,
        cost_s: float | None,
        running_s: float,
        batch: BatchTiming | None,
    ) -> None:
        """Closes the period: what `observe` will report.

        Args:
            now_s: The moment of the observation, as arrival times are.
            timer_s: The same moment on the timer.
            queries: The class's queries, in a fixed order: its outputs.
            waiting: What the grant is for, by arrival.
            waiting_rows: What waits in the whole class.
            cost_s: Batch time a row costs in a full batch.
            running_s: Expected rest of the batches that run.
            batch: What a batch of the query to be granted costs.
        """
        # two grants within a moment must not make a rate infinite
        period_s = max(timer_s - self.last_s, 1e-3)
        rows = np.concatenate(self._delay_rows) if self._delay_rows else np.empty(0)
        delays = np.concatenate(self._delay_s) if self._delay_s else np.empty(0)
        outputs = [self._output_s.get(query, (0.0, 0.0)) for query in queries]
        rate = self.offered_rows / period_s
        entry_s = waiting_rows * self.keep_fraction * (cost_s or 0.0)
        self.pending = Observation(
            id=self.next_id,
            cls=self.cls.name,
            now_s=now_s,
            period_s=period_s,
            delay_target_s=self.cls.delay_target_s,
            keep_fraction=self.keep_fraction,
            offered_rows=self.offered_rows,
            admitted_rows=self.admitted_rows,
            shed_rows=self.shed_rows,
            departed_rows=self.departed_rows,
            waiting_rows=waiting_rows,
            offered_load=rate * (cost_s or 0.0),
            queued_load_s=running_s + entry_s,
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
