"""kalyvianaki2016 7.6: how long the whole shedding step takes, against random shedding."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace

import numpy as np

from penstock.bench import BenchRun, bench
from penstock.policies.shedding import Shedder, ShedObservation, WaitingBatches, shedder_config

BATCHES, QUERIES, ROWS = 10_000, 1_000, 50


@dataclass(frozen=True)
class Buffer:
    """An input buffer: headers, and the rows themselves, which are not looked at."""

    headers: WaitingBatches
    rows: list[np.ndarray]


def full_buffer(seed: int) -> Buffer:
    """Batches of the complex workload's sources: 10, 20 and 2 of them a fragment, 1 to 6 fragments."""
    rng = np.random.default_rng(seed)
    sources = rng.choice([10, 20, 2], QUERIES) * rng.integers(1, 7, QUERIES)
    query = rng.integers(0, QUERIES, BATCHES)
    sic = ROWS / (1500.0 * sources[query])
    arrival_s = np.sort(rng.uniform(0.0, 0.25, BATCHES))
    headers = WaitingBatches(query, np.full(BATCHES, ROWS), sic, arrival_s, arrival_s)
    return Buffer(headers, [rng.random(ROWS) for _ in range(BATCHES)])


def step(shedder: Shedder, seen: ShedObservation, buffer: Buffer) -> Buffer:
    """Decide, then apply: what is left in the buffer."""
    keep = shedder.decide(seen).keep
    kept = np.flatnonzero(keep)
    headers = WaitingBatches(
        *(None if (a := getattr(buffer.headers, f.name)) is None else a[kept] for f in fields(buffer.headers))
    )
    return Buffer(headers, [buffer.rows[i] for i in kept.tolist()])


@bench("sec7.6", title="The shedding step: 10,000 batches of 1,000 queries, BALANCE-SIC against random")
def sec7_6(run: BenchRun) -> None:
    buffer = full_buffer(run.seed)
    reported = np.random.default_rng(run.seed).uniform(0.25, 0.35, QUERIES)
    seen = ShedObservation(0, 0.25, buffer.headers, reported, np.zeros(QUERIES), 0.3 * BATCHES * ROWS)
    names = ("random", "balance-sic")
    rounds = run.times(200)
    if run.quick:
        rounds = 20
    run.progress(total=rounds)
    times_ms: dict[str, list[float]] = {name: [] for name in names}
    decide_ms: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        asked = replace(seen, id=number)
        for name in names:  # in turn, so that whatever else the machine does hits both
            shedder = shedder_config(name).build(run.seed)
            started = time.perf_counter()
            step(shedder, asked, buffer)
            times_ms[name].append(1e3 * (time.perf_counter() - started))
            started = time.perf_counter()
            shedder.decide(asked)
            decide_ms[name].append(1e3 * (time.perf_counter() - started))
        run.progress(advance=1)
    random_ms, balance_ms = (float(np.median(times_ms[name])) for name in names)
    run.row("step_balance_ms", balance_ms)
    run.row("step_random_ms", random_ms)
    run.row("step_ratio", balance_ms / random_ms)
    run.row("decide_balance_ms", float(np.median(decide_ms["balance-sic"])))
    run.row("decide_random_ms", float(np.median(decide_ms["random"])))
    per_batch_us = 1e3 * balance_ms / BATCHES
    run.row("step_balance_per_batch_us", per_batch_us)
    run.note("the paper: 0.088 ms a batch with BALANCE-SIC, 0.079 ms with random shedding")
