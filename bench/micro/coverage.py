"""How often a 95 % interval holds the true value: windows over streams that the real plans sample."""

from __future__ import annotations

from penstock.bench import BenchRun
from penstock.grants.plans import Sampling

from .sampled_windows import Coverage, Overload, StreamShape, coverage

FAIR = {
    "rows": (StreamShape(), Overload("row", 0.1, 0.4)),
    "rows_skewed_values": (StreamShape(values="lognormal"), Overload("row", 0.1, 0.4)),
    "rows_in_segments": (StreamShape(), Overload("auto", 0.1, 0.4)),
    "rows_in_segments_long_grants": (StreamShape(drift=5.0), Overload("auto", 0.1, 0.4, grant_s=2.0)),
    "rows_in_segments_exponential": (StreamShape(values="exponential"), Overload("auto", 0.1, 0.4)),
    "segments": (StreamShape(), Overload("segment", 0.2, 0.5)),
    "segments_growing_values": (StreamShape(values="trend", partitions=2), Overload("segment", 0.2, 0.5)),
    "segments_long_grants": (StreamShape(drift=5.0), Overload("segment", 0.2, 0.5, grant_s=6.0)),
    "segments_bursts": (StreamShape(sizes="bursty"), Overload("segment", 0.2, 0.5)),
    "rows_in_segments_bursts": (StreamShape(sizes="bursty"), Overload("auto", 0.1, 0.4)),
    "keys": (StreamShape(), Overload("key", 0.3, 0.3)),
    "keys_cohort_changes": (StreamShape(), Overload("key", 0.3, 0.5)),
    "keys_64_buckets": (StreamShape(key_buckets=64), Overload("key", 0.55, 0.55)),
    "keys_skewed_half": (StreamShape(key_skew=0.5), Overload("key", 0.3, 0.3)),
}
"""Where an interval is meant to hold what it says."""


def _uneven(sampling: Sampling, keep: float, sizes: str, sigma: float = 1.0) -> tuple[StreamShape, Overload]:
    return StreamShape(sizes=sizes, size_sigma=sigma, values="segment"), Overload(sampling, keep, keep)


UNEVEN = {
    "uneven_segments_sigma_1": _uneven("segment", 0.3, "lognormal"),
    "uneven_segments_sigma_2": _uneven("segment", 0.3, "lognormal", 2.0),
    "uneven_segments_decades": _uneven("segment", 0.3, "decades"),
    "uneven_auto_sigma_1": _uneven("auto", 0.2, "lognormal"),
    "uneven_auto_sigma_2": _uneven("auto", 0.2, "lognormal", 2.0),
    "uneven_auto_decades": _uneven("auto", 0.2, "decades"),
}
"""Segments differ in size, and the values of a segment's rows are alike. A stream's few largest segments are
its fate, so there are many streams."""

HARD = {
    "rows_heavy_tail": (StreamShape(values="heavy"), Overload("row", 0.1, 0.4)),
    "keys_zipf": (StreamShape(key_skew=1.0), Overload("key", 0.3, 0.3)),
}
"""Where it is known to hold less: a few rows or keys decide the result, and may not be seen."""

LEAST_INTERVALS = 1000
"""From fewer a share is not known: 100 intervals are good to 2 points. Such a case is named, not held."""

_QUICK = ("rows", "rows_in_segments", "segments", "keys", "uneven_segments_sigma_1", "uneven_auto_sigma_2")


def measure(run: BenchRun) -> None:
    names = _QUICK if run.quick else (*FAIR, *UNEVEN, *HARD)
    repeats = 160 if run.quick else 400
    run.progress(total=len(names))
    held: dict[str, list[float]] = {"coverage": [], "uneven": []}
    for name in names:
        run.progress(name, advance=1)
        shape, overload = (FAIR | UNEVEN | HARD)[name]
        found = coverage(shape, overload, repeats, run.seed, repeats // 4 if name in UNEVEN else 4)
        run.note(f"{name}: {_said(found)}")
        intervals = min(tally.intervals for tally in found.values())
        percents = [tally.percent for tally in found.values()]
        if name in UNEVEN:
            run.row(f"{name}_intervals", intervals)
        if intervals < LEAST_INTERVALS and name in UNEVEN:
            run.note(f"{name}: {intervals} intervals are too few to say how often they hold")
            continue
        run.row(f"{name}_percent", min(percents))
        if name not in HARD:
            held["uneven" if name in UNEVEN else "coverage"] += percents
    for kind, percents in held.items():
        run.row(f"{kind}_min_percent", min(percents))
        run.row(f"{kind}_max_percent", max(percents))


def _said(found: dict[str, Coverage]) -> str:
    return "; ".join(
        f"{aggregate} {tally.percent:.1f} % of {tally.intervals:,}, {tally.without:,} without "
        f"(error^2 / variance {tally.ratio:.2f})"
        for aggregate, tally in found.items()
    )
