"""The check of a shedder's decision: shedders suggest, and nothing is carried out that cannot be."""

from __future__ import annotations

import math

import numpy as np

from penstock.policies.shedding.base import ShedDecision, ShedObservation
from penstock.vocabulary.errors import InvalidInputError

_ABOVE_ONE = 1e-9
"""By so much a chance may exceed one: the rounding of a sum."""


def checked(decision: ShedDecision, seen: ShedObservation) -> ShedDecision:
    """Returns a decision that can be carried out, as it is.

    NaN fails every comparison, so rules are stated as what must hold.

    Args:
        decision: The shedder's decision.
        seen: What the shedder saw.

    Raises:
        InvalidInputError: The decision cannot be carried out.
    """
    _check_keep(decision, seen)
    _check_effect(decision, seen)
    chance, seed = decision.keep_probability, decision.seed
    if not (chance is None or 0.0 <= chance <= 1.0 + _ABOVE_ONE):
        raise InvalidInputError("a shedder's keep_probability is from 0 to 1", chance, "None if not known")
    if not (seed is None or isinstance(seed, int)):
        raise InvalidInputError("a shedder's seed is a whole number", repr(seed), "None without coins")
    return decision


def _check_keep(decision: ShedDecision, seen: ShedObservation) -> None:
    if decision.observation_id != seen.id:
        raise InvalidInputError(
            f"a shedder decides on the observation that it got, {seen.id}",
            decision.observation_id,
            "give the decision the id of the observation",
        )
    keep = decision.keep
    if not (isinstance(keep, np.ndarray) and keep.dtype == np.bool_ and keep.shape == (seen.batches.size,)):
        raise InvalidInputError(
            f"a shedder's keep is an array of {seen.batches.size} booleans, one a batch",
            repr(keep),
            "give it the length of the observation's batches",
        )


def _check_effect(decision: ShedDecision, seen: ShedObservation) -> None:
    """What the record and the status say about a decision."""
    sic = np.asarray(decision.expected_sic, np.float64)
    if sic.shape != (seen.queries,) or not ((sic >= 0.0) & (sic < math.inf)).all():
        raise InvalidInputError(
            f"a shedder's expected_sic has {seen.queries} numbers of at least 0, one a query",
            repr(decision.expected_sic),
            "give it the length of the observation's reported_sic",
        )
    if not 0.0 <= decision.kept_load < math.inf:
        raise InvalidInputError(
            "a shedder's kept_load is a number of at least 0",
            decision.kept_load,
            "add up the load of what is kept",
        )
    if not isinstance(decision.reason, str):
        raise InvalidInputError(
            "a shedder's reason is a text", repr(decision.reason), "say why, in a sentence"
        )
