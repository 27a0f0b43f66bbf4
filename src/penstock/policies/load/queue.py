"""The virtual queue of CTRL (tu2006 4.5.1): rows in minus tuples out.

The count is right if each row that enters makes one tuple that leaves. With shared operators or joins, one
row makes several tuples. The count then falls below the real queue, and CTRL cannot see the overload of a
complex network (pham2016 3.3.1).
"""

from __future__ import annotations

from penstock.vocabulary.model import Observation


def advance_inside(inside_rows: float, observation: Observation) -> float:
    """Tuples inside the network by the count. The count is negative if rows leave as several tuples."""
    return inside_rows + observation.admitted_rows - observation.departed_rows


def virtual_queue(inside_rows: float, observation: Observation) -> float:
    """Outstanding rows by the count, at least zero. Rows at the entry count times the keep fraction."""
    return max(0.0, inside_rows + observation.waiting_rows * observation.keep_fraction)
