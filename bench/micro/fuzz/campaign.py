"""`micro/fuzz`: many seeds, on all cores; and defects that are planted, which must be noticed."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from functools import partial

from penstock.bench import BenchRun

from .case import draw
from .mutations import MUTATIONS, caught
from .shrink import Failure, run_case, shrink

SEEDS, SECONDS, MUTATION_SEEDS = 500, 20.0, 40

Ran = tuple[int, Failure | None, Counter[str], float]


def one(seed: int, seconds: float) -> Ran:
    """A seed, how it failed if it did, what there was, and its CPU seconds."""
    began_s, tally = time.process_time(), Counter[str]()
    failure = run_case(draw(seed, seconds), tally)
    return seed, failure, tally, time.process_time() - began_s


def measure(run: BenchRun) -> None:
    seeds, seconds = run.times(SEEDS), run.lasts(SECONDS)
    run.progress(total=seeds + len(MUTATIONS))
    failures, total, cpu_s = [], Counter[str](), 0.0
    # forked: the modules of a bench are not importable by their names elsewhere
    with multiprocessing.get_context("fork").Pool() as pool:
        ahead = pool.imap_unordered(partial(one, seconds=seconds), range(run.seed, run.seed + seeds))
        for seed, failure, tally, took_s in ahead:
            run.progress(f"seed {seed}: {'ok' if failure is None else failure.said}", advance=1)
            total, cpu_s = total + tally, cpu_s + took_s
            failures += [] if failure is None else [failure]
    for failure in sorted(failures, key=lambda f: f.case.seed)[:3]:
        smallest = shrink(failure)
        run.note(f"FAILED, made as small as it goes:\n{smallest.case.described()}\n{smallest.text}")
    run.note(f"seeds {run.seed} to {run.seed + seeds - 1}, {seconds:g} s each: {_said(total)}")
    run.row("failures", len(failures))
    run.row("cpu_s_per_seed", cpu_s / seeds)
    found = 0
    for name in MUTATIONS:
        hit = caught(name, run.seed, MUTATION_SEEDS, seconds)
        said = f"not noticed in {MUTATION_SEEDS} seeds" if hit is None else f"seed {hit[0]}: {hit[1].said}"
        run.progress(name, advance=1)
        run.note(f"planted: {name}: {said}")
        found += hit is not None
    run.row("mutations_caught", found)


def _said(total: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(total.items()))
