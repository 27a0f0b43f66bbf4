"""kalyvianaki2016 (THEMIS): what SIC is worth, BALANCE-SIC's fairness, scale and cost."""

from __future__ import annotations

from .correlation import fig6, fig7
from .fairness import fig8, fig9, fig10, fig11, fig12, fig13, fig14
from .optimum import sec7_5
from .step import sec7_6

__all__ = ["fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig13", "fig14", "sec7_5", "sec7_6"]
"""Benches of the neighbours."""
