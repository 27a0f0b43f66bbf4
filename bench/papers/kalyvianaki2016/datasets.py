"""What sources send in kalyvianaki2016 7: four distributions with mean 50, and CPU use on PlanetLab."""

from __future__ import annotations

import os
import tarfile
from functools import cache
from pathlib import Path

import numpy as np

from penstock.vocabulary.model import FloatArray

DATASETS = ("gaussian", "uniform", "exponential", "mixed", "planetlab")
MEAN = 50.0
GAUSSIAN_STD = 15.0
"""Ours: the papers give the mean alone."""
KB_PER_UNIT = 4000.0
"""Free memory in the synthetic data sets is such a value times this: 200 MB on average. Ours."""
TRACE = "planetlab-cpu/planetlab-workload-traces.tar.xz"
READINGS = 288


def readings(dataset: str, count: int, random: np.random.Generator) -> FloatArray:
    """What one source sends that collects readings of many nodes, one after the other."""
    if dataset != "planetlab":
        return _drawn(dataset, count, random)
    by_time = planetlab()[0]
    start = int(random.integers(by_time.size))
    return np.resize(np.roll(by_time.T.reshape(-1), -start), count)


def series(dataset: str, nodes: int, count: int, random: np.random.Generator) -> FloatArray:
    """What sources send that read one node each, a line for each; on PlanetLab a node plays one slice's day
    after the other."""
    if dataset != "planetlab":
        return _drawn(dataset, nodes * count, random).reshape(nodes, count)
    traces = planetlab()[0]
    days = -(-count // READINGS)
    return traces[random.integers(0, len(traces), (nodes, days))].reshape(nodes, -1)[:, :count]


def free_memory_kb(dataset: str, nodes: int, count: int, random: np.random.Generator) -> FloatArray:
    """Free memory of nodes. The PlanetLab traces have CPU alone: there each node has a level, about which its
    readings vary."""
    if dataset != "planetlab":
        return KB_PER_UNIT * _drawn(dataset, nodes * count, random).reshape(nodes, count)
    level = random.lognormal(np.log(200_000.0), 0.7, (nodes, 1))
    return level * random.lognormal(0.0, 0.3, (nodes, count))


def _drawn(dataset: str, count: int, random: np.random.Generator) -> FloatArray:
    kinds = {
        "gaussian": random.normal(MEAN, GAUSSIAN_STD, count),
        "uniform": random.uniform(0.0, 2 * MEAN, count),
        "exponential": random.exponential(MEAN, count),
    }
    if dataset == "mixed":
        return np.choose(random.integers(0, 3, count), list(kinds.values()))
    return kinds[dataset]


@cache
def planetlab() -> tuple[FloatArray, str]:
    """CPU use in percent, a line a slice and day, every five minutes; and where it is from."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    path = Path(os.environ.get("PENSTOCK_DATA") or beside) / TRACE
    if not path.is_file():
        return _made_up(), "made up in the shape of the PlanetLab traces, which are not here"
    traces = []
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                traces.append(np.array(file.read().split(), np.float64))
    lines = np.stack([trace for trace in traces if trace.size == READINGS])
    # the files are sorted by name: neighbours are slices of one machine
    return np.random.default_rng(0).permutation(lines), f"PlanetLab, {len(lines):,} slices' days of 2011"


def _made_up(slices: int = 2000) -> FloatArray:
    """Mean 11, standard deviation 15, whole percents: levels by slice, autocorrelated in time."""
    random = np.random.default_rng(0)
    level = random.lognormal(np.log(7.0), 0.9, (slices, 1))
    noise = random.normal(0, 1, (slices, READINGS))
    for i in range(1, READINGS):
        noise[:, i] = 0.8 * noise[:, i - 1] + 0.6 * noise[:, i]
    return np.clip(np.round(level * np.exp(0.5 * noise - 0.125)), 0, 100)
