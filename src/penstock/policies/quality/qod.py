"""Quality of data (pham2016 definition 5). Delays have a type of their own, `model.DelayStats`."""

from __future__ import annotations

from penstock.vocabulary.errors import InvalidInputError


def qod_percent(with_shedding: float, without_shedding: float) -> float | None:
    """How many percent of the output tuples shedding left; `None` if there is no output without shedding.

    The figure is meaningful for queries that lose output in proportion to their input: selections,
    projections, joins. For aggregates pham2016 takes the shedding rate; SIC is the better measure there.
    """
    if not 0 <= with_shedding <= without_shedding:
        raise InvalidInputError(
            "shedding leaves between none and all of the output",
            f"{with_shedding} of {without_shedding}",
            "count the output of the same input twice, with and without shedding",
        )
    return 100.0 * with_shedding / without_shedding if without_shedding else None
