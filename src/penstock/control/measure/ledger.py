"""Books what happened to rows: the costs of batches, the delays of rows and answers, and SIC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from penstock.control.core.events import BatchPlanned
from penstock.control.decide.observing import ClassPlant
from penstock.control.measure.lines import SicLine
from penstock.control.measure.sic import SicLedger
from penstock.control.state.lease import Lease, Outcome
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.moment import Moment


class Ledger:
    """Books what happened to the rows of queries.

    Args:
        sic: Counts offered and kept rows for SIC.
        tuning: Tuned constants.
    """

    def __init__(self, sic: SicLedger, tuning: Tuning = TUNING) -> None:
        self.sic, self._tuning = sic, tuning

    def arrivals(self, plant: ClassPlant, query: Query, at: Moment) -> None:
        """Counts rows as offered that arrived for a query since the last call.

        Args:
            plant: The plant of the query's class.
            query: The query.
            at: The present time.
        """
        rows = 0
        for reader, new in query.backlog.count_new().items():
            if new:
                self.sic.came(query.key, reader, at.timer_s)
            rows += new
        plant.arrived(query.key, rows)
        query.backlog.rates.count(rows)

    def planned(self, plant: ClassPlant, query: Query, lease: Lease, event: BatchPlanned) -> None:
        """Books that Spark plans a reader's batch. If Spark plans the batch again, nothing is booked."""
        processed, reader = 0 if event.set_aside else event.admitted, query.readers[event.reader]
        if not lease.log(event.reader, processed):
            return
        plant.decided(processed, max(0, event.offset.rows - event.admitted))
        self.sic.decided(
            event.at.timer_s,
            query.key,
            event.reader,
            reader.stream.id,
            event.offset.rows,
            processed,
            event.offset.grant,
            query.turn.batches,
        )

    def completed(
        self, plant: ClassPlant, query: Query, lease: Lease, outcome: Outcome, windowed: bool, at: Moment
    ) -> SicLine:
        """Books a batch that ran to its end.

        Args:
            plant: The plant of the query's class.
            query: The query that ran the batch.
            lease: The lease under which the batch ran.
            outcome: Whether Spark ran the batch for the first time, or again after a restart.
            windowed: Whether the query's answers are windows that the watermark closes.
            at: The present time.

        Returns:
            The line of `sic.jsonl` about the batch.
        """
        _send_out(plant, query, at.timer_s)
        if lease.admitted:
            query.turn.open_windows()
        if lease.admitted and outcome is not Outcome.REPLAYED:
            _book_delays(plant, query, lease, at.timer_s)
            if not windowed:
                _send_out(plant, query, at.timer_s)
        line = self._line(query, lease, at)
        query.results.noted.append(line)
        if outcome is Outcome.DONE:  # a batch that ran again began in a query that was only starting
            query.costs.learn(lease, at.timer_s, self._tuning)
        return line

    def _line(self, query: Query, lease: Lease, at: Moment) -> SicLine:
        sic = self.sic.of(query.key, at.timer_s)
        return SicLine(
            at.wall_s,
            query.cls,
            query.name,
            query.key,
            query.grants(lease),
            lease.batch,
            lease.admitted,
            lease.dropped,
            sic.batch,
            sic.value,
        )

    def reported(
        self, query: Query, batch: int, rows: Mapping[tuple[str, int], float], now_s: float
    ) -> SicLine | None:
        """Books Spark's report on a micro-batch: its number, and admitted rows that its watermark dropped.

        The report may come before the query's next question, or after further batches have ended.

        Args:
            query: The query.
            batch: Spark's number of the micro-batch.
            rows: By reader and number of the grant, how many rows the watermark dropped; 0 if none.
            now_s: The present time on the timer.

        Returns:
            The corrected line of the micro-batch, if its line was written before the report came.
        """
        total, noted = sum(rows.values()), query.results.noted
        query.results.dropped += total
        fell = self.sic.dropped(now_s, query.key, rows)
        lease = query.lease
        if lease is not None and _is_of(query.grants(lease), rows):
            lease.report(batch, total)
            return None
        at = next((i for i, line in enumerate(noted) if _is_of(line.grants, rows)), None)
        if at is None or (noted[at].batch == batch and not total):
            return None
        line = noted[at]
        anew = noted[at] = replace(
            line,
            batch=batch,
            dropped_by_watermark=line.dropped_by_watermark + total,
            sic_batch=None if line.sic_batch is None else max(0.0, line.sic_batch - fell),
            sic=self.sic.of(query.key, now_s).value if total else line.sic,
        )
        return anew


def _book_delays(plant: ClassPlant, query: Query, lease: Lease, now_s: float) -> None:
    """Books the row delays of a batch, as if the admitted rows had been drawn evenly from its grant."""
    terms = lease.terms
    total = float(terms.arrival_rows.sum())
    rows = terms.arrival_rows * (lease.admitted / total) if total else terms.arrival_rows
    delays_s = np.maximum(now_s - terms.arrival_s, 0.0)
    plant.completed(query.key, delays_s, rows, learned_from=query.cost.ready)
    query.results.closing = terms.arrival_s, rows


def _send_out(plant: ClassPlant, query: Query, now_s: float) -> None:
    """Books the delays of answers that left with the batch which ended now.

    Spark moves the watermark after a batch and closes windows in the next. Every row of a batch counts as one
    that closed a window; in a stream in order of event time these are spread evenly.
    """
    if query.results.closing is not None:
        arrival_s, rows = query.results.closing
        plant.sent_out(np.maximum(now_s - arrival_s, 0.0), rows)
        query.results.closing = None


def _is_of(grants: Mapping[str, int], rows: Mapping[tuple[str, int], float]) -> bool:
    """Whether a report is about the micro-batch with these grants."""
    return any(grants.get(reader) == grant for reader, grant in rows)
