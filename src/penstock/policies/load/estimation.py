"""Load estimation from operator statistics (pham2016 eq. 3.1, 3.2 and 4.1; Tatbul et al. 2003).

The load coefficient of an operator is the CPU time that one tuple in its input queue still costs on its way
out, summed over all branches that share the operator:

    coefficient[i] = cost_s[i] + selectivity[i] * sum(coefficient[d] for d in downstream[i])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.vocabulary.model import FloatArray


def load_coefficients(
    cost_s: FloatArray, selectivity: FloatArray, downstream: Sequence[Sequence[int]]
) -> FloatArray:
    """The load coefficient of every operator (eq. 3.2, with the recursion over branches).

    Args:
        cost_s: CPU seconds a tuple, per operator, in topological order.
        selectivity: Output tuples an input tuple, per operator.
        downstream: For each operator the operators that read its output.
    """
    costs, passed = cost_s.tolist(), selectivity.tolist()
    coefficients = [0.0] * len(costs)
    for i in range(len(costs) - 1, -1, -1):
        rest = 0.0
        for d in downstream[i]:
            rest += coefficients[d]
        coefficients[i] = costs[i] + passed[i] * rest
    return np.asarray(coefficients)


def incoming_load(rate_per_s: FloatArray, source_coefficient_s: FloatArray) -> float:
    """Eq. 3.1: the CPU seconds that the streams ask for in a second."""
    return float(rate_per_s @ source_coefficient_s)


def queued_load(queue_rows: FloatArray, coefficient_s: FloatArray) -> float:
    """Eq. 4.1: CPU seconds that wait in the operators' queues."""
    return float(queue_rows @ coefficient_s)
