"""How many cores a batch uses, and how long it takes on them.

A task costs its start, so a batch is divided into few long tasks rather than many short ones: as many as it
takes to end in time. Where a batch counts as if it had the machine for itself, it takes its machine time.
"""

from __future__ import annotations

import math

import numpy as np

from penstock.vocabulary.model import FloatArray

_ROUNDING = 0.1
"""Work that is this part of a task too much for so many tasks is not worth another."""


def tasks_of(core_s: float, cores: int, task_s: float) -> int:
    """Into how many tasks the work of a batch is divided, at most one for each core.

    Args:
        core_s: Core seconds of the batch.
        cores: Cores of the machine.
        task_s: How long its tasks are, or longer.
    """
    return max(1, min(cores, math.ceil(core_s / task_s - _ROUNDING)))


def takes_s(machine_s: FloatArray, cores: FloatArray, task_s: FloatArray, stretch: FloatArray) -> FloatArray:
    """By batch, how long its tasks take, from when the first of them can begin.

    Args:
        machine_s: Machine seconds of the batch.
        cores: Cores of its machine; 1 where the batch counts as if it had the machine for itself.
        task_s: How long its tasks are, or longer.
        stretch: How many times as long tasks take as their work would on the cores that they use.
    """
    core_s = machine_s * cores
    with np.errstate(divide="ignore", invalid="ignore"):
        tasks = np.ceil(core_s / task_s - _ROUNDING).clip(1.0, cores)
    found: FloatArray = np.where(cores > 1.0, core_s / tasks * stretch, machine_s)
    return found
