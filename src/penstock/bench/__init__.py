"""Benchmarks: the papers' figures beside ours, and micro-benchmarks. They live in `bench/` of a checkout.

    from penstock.bench import BenchRun, bench

    @bench("fig12", title="accumulated violations of three load shedders")
    def fig12(run: BenchRun) -> None:
        run.row("aurora_to_ctrl_violation", run.repeat(measure))

in `bench/papers/tu2006/run.py` is the bench `tu2006/fig12`; `expected.csv` beside it has the paper's figures.
"""

from penstock.bench.registry import Bench, bench, load_benches, select
from penstock.bench.report import BenchReport, ExpectedRow, environment, read_expected
from penstock.bench.runner import BenchRun, run_bench

__all__ = [
    "Bench",
    "BenchReport",
    "BenchRun",
    "ExpectedRow",
    "bench",
    "environment",
    "load_benches",
    "read_expected",
    "run_bench",
    "select",
]
