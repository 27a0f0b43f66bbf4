"""The virtual queue of CTRL (tu2006 4.5.1): tuples in minus tuples out.

Right where one row in is one tuple out; with shared operators or joins a row leaves several times, the
count runs below what is there, and CTRL cannot see the overload of a complex network (pham2016 3.3.1).
"""

from __future__ import annotations

from penstock.vocabulary.model import Observation


def advance_inside(inside_rows: float, observation: Observation) -> float:
    """Tuples inside the network by the count: in minus out. Negative where rows leave several times."""
    return inside_rows + observation.admitted_rows - observation.departed_rows


def virtual_queue(inside_rows: float, observation: Observation) -> float:
    """Outstanding rows by the count, at least zero; rows at the entry count x the keep fraction in force."""
    return max(0.0, inside_rows + observation.waiting_rows * observation.keep_fraction)
