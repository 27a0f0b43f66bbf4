"""The demo as a picture: delays of every batch against the class's target, under Penstock and without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.vocabulary.errors import MissingExtraError

if TYPE_CHECKING:
    from penstock.demo.run import ClassRun, DemoResult

_COLOURS = {"gold": "#e69f00", "silver": "#56b4e9", "bronze": "#0b3d91"}
_INK, _GRID, _TARGET = "#222222", "#e8e8e8", "#b3261e"


def plot_demo(result: DemoResult, path: Path) -> None:
    """Writes a PNG: one panel a class, the delays of its rows over time, governed and plain."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:  # pragma: no cover - exercised only without the extra
        raise MissingExtraError("plots", "matplotlib", "sim") from missing
    figure = Figure(figsize=(10, 7.2), layout="constrained")
    panels = figure.subplots(len(result.governed), 1, sharex=True)
    for panel, (name, governed) in zip(panels, result.governed.items(), strict=True):
        _draw(panel, governed, result.governed_from_s, _COLOURS[name], "Penstock")
        _draw(panel, result.plain[name], result.plain_from_s, "#7a7a7a", "plain Structured Streaming")
        panel.axhline(governed.target_s, color=_TARGET, lw=1.2, ls="--")
        panel.set_ylabel(f"{name}\ndelay, s")
        panel.set_ylim(bottom=0)
        panel.grid(True, color=_GRID, lw=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.annotate(
            f"target {governed.target_s:g} s",
            (1.0, governed.target_s),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color=_TARGET,
            fontsize=9,
        )
    panels[0].legend(frameon=False, loc="upper right", fontsize=9)
    panels[-1].set_xlabel("seconds since the input began")
    loads = result.to_json()["offered_to_capacity"]
    figure.suptitle(
        f"Three classes on one Spark, {loads:.1f} times as much input as it can process", color=_INK
    )
    figure.savefig(path, dpi=110)


def _draw(panel: Any, run: ClassRun, from_s: float, colour: str, label: str) -> None:
    """Draws each batch as a bar from the newest row's delay to the oldest's, and the p95 as a line."""
    ends, highs = [], []
    for batch in run.batches:
        delay_s = np.sort(batch.ended_s - batch.arrival_s)
        ends.append(batch.ended_s - from_s)
        highs.append(float(delay_s[int(0.95 * (delay_s.size - 1))]))
        panel.vlines(ends[-1], delay_s[0], delay_s[-1], color=colour, lw=2.0, alpha=0.35)
    if run.still_behind_s is not None and ends:
        # rows that waited when the run ended had not been processed at all
        now_s, behind_s = run.still_behind_s
        panel.plot([ends[-1], now_s - from_s], [highs[-1], behind_s], color=colour, lw=1.2, ls=":")
    panel.plot(ends, highs, color=colour, lw=1.5, marker="o", ms=3, label=f"{label}: p95 of each batch")
