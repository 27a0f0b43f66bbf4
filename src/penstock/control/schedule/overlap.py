"""Batches overlap at their ends: a batch is granted a little before the running batch ends.

Starting a batch (offset log, planning, tasks) leaves the cores idle. The next batch is therefore started
beside the end of the running batch. Spark does not interrupt tasks: tasks that start too early keep the cores
for which the last stage of the running batch then waits. So the next batch is held back until the running
batch has started its last stage.

Two simpler rules do not work. The first is to wait for the end of reading: rows may still be in buffers on
their way to the JVM. The second is to grant the next batch only once the last stage has started: cores are
idle while that batch is planned. Three queries that drained a log then had 0.88 of the ungoverned throughput.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.control.measure.cost import CostModel
from penstock.control.state.lease import Lease
from penstock.control.tuning import TUNING, Tuning


@dataclass(slots=True)
class LastStages:
    """The last stages of a query's batches, learned from the batches before.

    Attributes:
        jobs: How many of Spark's jobs a batch has; 0 if the driver does not report last stages.
        fraction: The part of a batch's time that is left when the last of its jobs starts its last stage.
    """

    jobs: int = 0
    fraction: float = 0.0

    def learn(self, lease: Lease, now_s: float, tuning: Tuning = TUNING) -> None:
        """Takes in a batch that is done."""
        if lease.jobs:
            fraction = (now_s - lease.last_stage_s) / max(lease.ran_s(now_s), 1e-9)
            weight = 1.0 / tuning.tail_memory_batches if self.jobs else 1.0
            self.fraction += weight * (min(fraction, 1.0) - self.fraction)
        self.jobs = lease.jobs


def rest_s(lease: Lease, cost: CostModel, last_stages: LastStages, now_s: float) -> float | None:
    """How much longer a running batch is expected to take; `None` if that is not known."""
    if lease.terms.replay or lease.is_proposed or not cost.ready:
        return None
    expected_s = cost.batch_s(lease.admitted)
    left_s = expected_s - lease.ran_s(now_s)
    if last_stages.jobs and lease.jobs >= last_stages.jobs:
        left_s = min(left_s, last_stages.fraction * expected_s - (now_s - lease.last_stage_s))
    return left_s


def early_s(last_stages: LastStages, fixed_s: float, tuning: Tuning = TUNING) -> float:
    """How long before the end of a running batch the batch of another query may be granted.

    Args:
        last_stages: The last stages of the query whose batch runs.
        fixed_s: The fixed cost of the other query's batches.
        tuning: Which part of the fixed cost the two batches may overlap.
    """
    return (tuning.overlap_fixed if last_stages.jobs else tuning.guessed_overlap_fixed) * fixed_s


def is_held_back(lease: Lease, others: Iterable[tuple[Lease, LastStages]]) -> bool:
    """Whether a batch that was granted beside running batches must wait before it takes cores.

    Args:
        lease: The lease of the batch.
        others: The lease of each running batch, and the last stages of its query.
    """
    if lease.terms.replay:
        return False
    return any(
        other.terms.began_s <= lease.terms.began_s and other.jobs < last_stages.jobs
        for other, last_stages in others
    )
