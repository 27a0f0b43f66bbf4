"""kalyvianaki2016 (THEMIS): what SIC is worth, BALANCE-SIC's fairness, scale and cost."""

from __future__ import annotations

from .fairness import fig8, fig9, fig10, fig11, fig12, fig13, fig14
from .step import sec7_6

__all__ = ["fig8", "fig9", "fig10", "fig11", "fig12", "fig13", "fig14", "sec7_6"]
"""Benches of the neighbours."""
