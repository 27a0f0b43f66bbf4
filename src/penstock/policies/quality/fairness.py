"""How evenly quality is spread over queries: Jain's index, and the measures of spread of fiscato2012 6.3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import FloatArray


def jain_index(values: FloatArray) -> float:
    """(sum x)^2 / (n * sum x^2): 1 if all values are equal, 1 / n if one has everything, 1 if all are 0."""
    checked = _checked(values)
    squares = float(checked @ checked)
    return float(checked.sum()) ** 2 / (checked.size * squares) if squares > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of many queries in a few numbers.

    Attributes:
        mean: Arithmetic mean.
        std: Standard deviation of the whole population.
        iqr: Third quartile minus first.
        q95_q05: 95th percentile minus 5th: the spread of the middle nine tenths.
        jain: Jain's fairness index.
    """

    mean: float
    std: float
    iqr: float
    q95_q05: float
    jain: float

    @classmethod
    def of(cls, values: FloatArray) -> Spread:
        """The spread of some values. Percentiles between two values are interpolated."""
        checked = _checked(values)
        q05, q25, q75, q95 = (float(q) for q in np.percentile(checked, (5, 25, 75, 95)))
        return cls(float(checked.mean()), float(checked.std()), q75 - q25, q95 - q05, jain_index(checked))


def _checked(values: FloatArray) -> FloatArray:
    if values.size == 0:
        raise InvalidInputError("fairness is measured over at least one query", "none", "give their SIC")
    if not bool((values >= 0).all() and np.isfinite(values).all()):
        raise InvalidInputError(
            "fairness is measured of numbers that are not negative",
            values[~(values >= 0)],
            "leave unknown ones out",
        )
    return values
