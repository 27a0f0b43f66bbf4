"""How often a 95 % interval holds the true value: windows over streams that the real plans sample."""

from __future__ import annotations

from penstock.bench import BenchRun
from penstock.sim.sampled_windows import Coverage, Overload, StreamShape, coverage

FAIR = {
    "rows": (StreamShape(), Overload("row", 0.1, 0.4)),
    "rows_skewed_values": (StreamShape(values="lognormal"), Overload("row", 0.1, 0.4)),
    "rows_in_segments": (StreamShape(), Overload("auto", 0.1, 0.4)),
    "rows_in_segments_long_grants": (StreamShape(drift=5.0), Overload("auto", 0.1, 0.4, grant_s=2.0)),
    "rows_in_segments_exponential": (StreamShape(values="exponential"), Overload("auto", 0.1, 0.4)),
    "segments": (StreamShape(), Overload("segment", 0.2, 0.5)),
    "segments_growing_values": (StreamShape(values="trend", partitions=2), Overload("segment", 0.2, 0.5)),
    "segments_long_grants": (StreamShape(drift=5.0), Overload("segment", 0.2, 0.5, grant_s=6.0)),
    "keys": (StreamShape(), Overload("key", 0.3, 0.3)),
    "keys_cohort_changes": (StreamShape(), Overload("key", 0.3, 0.5)),
    "keys_64_buckets": (StreamShape(key_buckets=64), Overload("key", 0.55, 0.55)),
    "keys_skewed_half": (StreamShape(key_skew=0.5), Overload("key", 0.3, 0.3)),
}
"""Where an interval is meant to hold what it says."""

HARD = {
    "rows_heavy_tail": (StreamShape(values="heavy"), Overload("row", 0.1, 0.4)),
    "segments_bursts": (StreamShape(sizes="bursty"), Overload("segment", 0.2, 0.5)),
    "rows_in_segments_bursts": (StreamShape(sizes="bursty"), Overload("auto", 0.1, 0.4)),
    "keys_zipf": (StreamShape(key_skew=1.0), Overload("key", 0.3, 0.3)),
}
"""Where it is known to hold less: a few rows, segments or keys decide the result, and may not be seen."""

_QUICK = ("rows", "rows_in_segments", "segments", "keys")


def measure(run: BenchRun) -> None:
    names = _QUICK if run.quick else (*FAIR, *HARD)
    repeats = 160 if run.quick else 400
    run.progress(total=len(names))
    lowest, highest = 100.0, 0.0
    for name in names:
        run.progress(name, advance=1)
        shape, overload = (FAIR | HARD)[name]
        found = coverage(shape, overload, repeats, run.seed)
        run.note(f"{name}: {_said(found)}")
        percents = [tally.percent for tally in found.values()]
        run.row(f"{name}_percent", min(percents))
        if name in FAIR:
            lowest, highest = min(lowest, *percents), max(highest, *percents)
    run.row("coverage_min_percent", lowest)
    run.row("coverage_max_percent", highest)


def _said(found: dict[str, Coverage]) -> str:
    return "; ".join(
        f"{aggregate} {tally.percent:.1f} % of {tally.intervals:,} (error^2 / variance {tally.ratio:.2f})"
        for aggregate, tally in found.items()
    )
