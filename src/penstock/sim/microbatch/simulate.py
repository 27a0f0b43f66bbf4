"""Runs a scenario of the micro-batch plant to the end of its virtual time and sums it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from penstock.control.measure.delays import stats
from penstock.host.recorder import RunRecorder
from penstock.sim.microbatch.cluster import VirtualCluster
from penstock.sim.microbatch.lab import Lab, check_books
from penstock.sim.microbatch.loads import BIN_S
from penstock.sim.microbatch.query import SimulatedQuery
from penstock.sim.microbatch.scenario import MicrobatchScenario, StreamSpec
from penstock.streams.producing.schedule import schedule_from_counts
from penstock.streams.protocol import StreamLog
from penstock.vocabulary.model import DelayStats
from penstock.vocabulary.status import ClassStatus, Status

STEP_S = 1.0
"""Virtual seconds between reports of progress."""


@dataclass(frozen=True)
class ClassOutcome:
    """What came of a class. offered = admitted + shed + waiting.

    Attributes:
        delay: Of the rows whose batches were done: from arrival to the end of the batch.
        share: Its part of the time of all batches; `None` where there was none.
        oldest_waiting_s: Age of the oldest row that waits at the end.
        queries: The same rows by query.
    """

    target_s: float
    priority: float
    manager: str
    offered: int
    admitted: int
    shed: int
    waiting: int
    delay: DelayStats
    share: float | None
    oldest_waiting_s: float | None
    queries: dict[str, dict[str, int]]

    @property
    def loss_fraction(self) -> float:
        return self.shed / self.offered if self.offered else 0.0


@dataclass(frozen=True)
class MicrobatchResult:
    """What came of a run."""

    scenario: str
    duration_s: float
    seed: int
    slots: int
    load: float
    """Seconds of batches that were asked for in a second, for each slot."""
    dry_run: bool
    classes: dict[str, ClassOutcome]
    status: Status
    """The control plane's own, at the end."""

    def rows(self, what: str) -> int:
        """Rows of all classes that were offered, admitted or shed, or wait."""
        return sum(getattr(outcome, what) for outcome in self.classes.values())

    def to_json(self) -> dict[str, Any]:
        """As `penstock simulate --plant microbatch --json` writes it."""
        classes = {
            name: {**asdict(outcome), "loss_fraction": outcome.loss_fraction}
            for name, outcome in self.classes.items()
        }
        kept = ("scenario", "duration_s", "seed", "slots", "load", "dry_run")
        return {
            "plant": "microbatch",
            **{name: getattr(self, name) for name in kept},
            **{name: self.rows(name) for name in ("offered", "admitted", "shed", "waiting")},
            "classes": classes,
        }


def simulate_microbatch(
    scenario: MicrobatchScenario,
    recorder: RunRecorder | None = None,
    on_progress: Callable[[float, float], None] | None = None,
    folder: Path | None = None,
) -> MicrobatchResult:
    """Runs a scenario. The books are checked once a virtual second; an error there is a defect of Penstock.

    Args:
        scenario: What to run.
        recorder: Gets every decision, for example a run directory.
        on_progress: Called with the virtual time reached and its end.
        folder: Where the streams lie meanwhile; a temporary one by default.
    """
    with TemporaryDirectory(prefix="penstock-microbatch-", dir=folder) as place:
        lab = Lab(Path(place))
        with lab.open:
            cluster = build(scenario, lab, recorder)
            passed_s = 0.0
            while passed_s < scenario.duration_s:
                step_s = min(STEP_S, scenario.duration_s - passed_s)
                cluster.run(step_s)
                check_books(cluster)
                passed_s += step_s
                if on_progress is not None:
                    on_progress(passed_s, scenario.duration_s)
            return _result(scenario, cluster)


def build(scenario: MicrobatchScenario, lab: Lab, recorder: RunRecorder | None = None) -> VirtualCluster:
    """The cluster of a scenario, before its first moment."""
    cluster = lab(
        {name: config.model_dump(by_alias=True) for name, config in scenario.classes.items()},
        recorder,
        capacity=scenario.capacity.model_dump(by_alias=True),
        slots=scenario.slots,
        dry_run=scenario.dry_run,
        seed=scenario.seed,
        stw=scenario.stw_s,
    )
    began_s, scale = cluster.timer(), scenario.scale()
    logs = {n: _stream(lab, cluster, s, scenario.duration_s, scale) for n, s in scenario.streams.items()}
    seeds = np.random.SeedSequence(scenario.seed).generate_state(len(scenario.queries))
    for (name, query), seed in zip(scenario.queries.items(), seeds.tolist(), strict=True):
        several = len(query.streams) > 1
        read: dict[str, StreamLog] = {stream: logs[stream] for stream in query.streams}
        given = read if several else read[query.streams[0]]
        cluster.add(name, query.cls, given, query.machine(began_s), seed)
    return cluster


def _stream(lab: Lab, cluster: VirtualCluster, spec: StreamSpec, seconds: float, scale: float) -> StreamLog:
    counts = spec.load.counts(seconds) * scale
    if not round(counts.sum() / spec.partitions):  # a stream that never sends is there all the same
        return lab.stream(cluster, 1.0, 1.0, key="sensor" if spec.key else None, begin=False)
    schedule = schedule_from_counts(counts / spec.partitions, BIN_S)
    key = "sensor" if spec.key else None
    return lab.stream(cluster, [schedule] * spec.partitions, key=key, skew_s=spec.ahead_s)


def _result(scenario: MicrobatchScenario, cluster: VirtualCluster) -> MicrobatchResult:
    status = cluster.status()
    return MicrobatchResult(
        scenario.name,
        scenario.duration_s,
        scenario.seed,
        scenario.slots,
        scenario.busy_s() / scenario.slots,
        scenario.dry_run,
        {name: _outcome(name, found, cluster) for name, found in status.classes.items()},
        status,
    )


def _outcome(name: str, found: ClassStatus, cluster: VirtualCluster) -> ClassOutcome:
    queries = [query for query in cluster.queries.values() if query.cls == name]
    books = ("offered", "admitted", "shed", "waiting")
    same = ("target_s", "priority", "manager", "share", "oldest_waiting_s", *books)
    return ClassOutcome(
        **{key: getattr(found, key) for key in same},
        delay=_delays(queries, cluster.timer()),
        queries={key: {rows: getattr(q, rows) for rows in books} for key, q in found.queries.items()},
    )


def _delays(queries: list[SimulatedQuery], now_s: float) -> DelayStats:
    done = [batch for query in queries for batch in query.batches if batch.done_s <= now_s]
    if not done:
        return DelayStats()
    return stats(np.concatenate([b.delays_s for b in done]), np.concatenate([b.rows for b in done]))
