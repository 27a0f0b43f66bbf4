"""Draws a run over time: input, shed rows, delays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.sim.simulate import Timeline
from penstock.vocabulary.errors import MissingExtraError
from penstock.vocabulary.model import FloatArray

_INK, _MUTED, _GRID, _TARGET = "#222222", "#6b6b6b", "#e8e8e8", "#b3261e"
_COLOURS = {
    "aurora": "#e69f00",
    "baseline": "#999999",
    "ctrl": "#56b4e9",
    "seamless": "#cc79a7",
    "aloma": "#009e73",
    "deadline": "#0b3d91",
}
"""Colours of Okabe and Ito, for colour-blind readers; a manager has the same colour in every plot."""
_OTHERS = ("#7a7a7a", "#8c564b", "#bcbd22", "#17becf")

_BINS_OF_ONE, _BINS_OF_SEVERAL = 200, 100
"""Number of bins: several lines in one plot are legible only if each is smoother."""
_LINEAR_TARGETS, _RUNAWAY_TARGETS = 2, 4
"""A delay above 4 targets makes the axis logarithmic above 2 targets, so that other lines stay legible."""


def plot_timelines(
    timelines: Mapping[str, Timeline],
    target_s: float,
    path: str | Path,
    title: str = "Load shedding over time",
) -> None:
    """Writes a PNG of one or several runs on the same input.

    Args:
        timelines: Timelines by the name to show; later ones are drawn on top.
        target_s: The delay target.
        path: The file; an existing file is overwritten.
        title: Headline.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:  # pragma: no cover - exercised only without the extra
        raise MissingExtraError("plots", "matplotlib", "sim") from missing
    figure = Figure(figsize=(10, 7.6), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(1.0, 1.3, 1.7))
    rate, shed, delay = axes
    end_s = max(float(line.now_s[-1]) for line in timelines.values())
    period_s = max(float(line.period_s[0]) for line in timelines.values())
    fine, coarse = (_Bins(max(end_s / n, period_s), end_s) for n in (_BINS_OF_ONE, _BINS_OF_SEVERAL))
    bins = fine if len(timelines) == 1 else coarse
    _draw_input(rate, fine, next(iter(timelines.values())))
    others = iter(_OTHERS * len(timelines))
    highest_s = target_s
    for name, line in timelines.items():
        colour, on_top = _COLOURS.get(name) or next(others), name == list(timelines)[-1]
        style: dict[str, Any] = {"color": colour, "lw": 1.7 if on_top else 1.2, "label": name}
        shed.plot(
            bins.middle_s,
            100 * bins.ratio(line, line.shed_rows, line.admitted_rows + line.shed_rows),
            **style,
        )
        p95_s = bins.mean(line, line.p95_s)
        delay.plot(bins.middle_s, p95_s, **style)
        highest_s = max(highest_s, float(np.nanmax(p95_s, initial=0.0)))
    shed.set_ylabel("shed, % of rows")
    shed.set_ylim(-2, 102)
    shed.set_yticks([0, 25, 50, 75, 100])
    _finish_delay(delay, target_s, highest_s)
    for axis in axes:
        axis.grid(True, color=_GRID, lw=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#b0b0b0")
        axis.tick_params(color="#b0b0b0", labelcolor=_MUTED, labelsize=9)
        axis.yaxis.label.set(color=_INK, fontsize=10)
        axis.set_xlim(0, end_s)
    figure.align_ylabels(axes)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    if len(timelines) > 1:
        rate.legend(
            *shed.get_legend_handles_labels(),
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=len(timelines),
            frameon=False,
            borderaxespad=0.0,
            fontsize=9.5,
            handlelength=1.4,
            columnspacing=1.4,
        )
    figure.savefig(path, dpi=150, format="png")


def _draw_input(axis: Any, bins: _Bins, line: Timeline) -> None:
    rate_per_s = bins.ratio(line, line.offered_per_s * line.period_s, line.period_s)
    axis.fill_between(bins.middle_s, rate_per_s, color="#c9d3e6", lw=0)
    axis.plot(bins.middle_s, rate_per_s, color="#51617d", lw=1.0)
    axis.set_ylabel("input, rows/s")
    axis.set_ylim(bottom=0)


def _finish_delay(axis: Any, target_s: float, highest_s: float) -> None:
    axis.axhline(target_s, color=_TARGET, lw=1.1, ls=(0, (5, 3)), zorder=1.5)
    axis.annotate(
        f"target\n{target_s:g} s",
        (1.0, target_s),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=_TARGET,
        fontsize=9,
    )
    axis.set_xlabel("time, s", color=_INK)
    axis.set_ylabel("delay, s (p95)")
    if highest_s > _RUNAWAY_TARGETS * target_s:
        from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

        axis.set_yscale("symlog", linthresh=_LINEAR_TARGETS * target_s, linscale=1.5)
        factors = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
        ticks = [0.0, *(f * target_s for f in factors if f * target_s < 1.3 * highest_s)]
        axis.yaxis.set(major_locator=FixedLocator(ticks), minor_locator=NullLocator())
        axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_ylabel(f"delay, s (p95)\nlogarithmic above {_LINEAR_TARGETS * target_s:g} s")
        axis.set_ylim(0, 1.3 * highest_s)
    else:
        axis.set_ylim(0, 1.08 * highest_s)


class _Bins:
    """Collects control periods into as many bins as a picture can show."""

    def __init__(self, width_s: float, end_s: float) -> None:
        self.count = max(1, int(np.ceil(end_s / width_s - 1e-9)))
        self.width_s = width_s
        self.middle_s = (np.arange(self.count) + 0.5) * width_s

    def ratio(self, line: Timeline, over: FloatArray, under: FloatArray) -> FloatArray:
        """Ratio of two sums in each bin; NaN, a gap in the line, in a bin without values."""
        index = np.minimum(((line.now_s - line.period_s / 2) / self.width_s).astype(np.int64), self.count - 1)
        sums = [np.bincount(index, weights=values, minlength=self.count) for values in (over, under)]
        return sums[0] / np.where(sums[1] > 0, sums[1], np.nan)

    def mean(self, line: Timeline, values: FloatArray) -> FloatArray:
        known = np.isfinite(values)
        return self.ratio(line, np.where(known, values, 0.0), known.astype(np.float64))
