"""What a shed plan keeps, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.grants.plans import ShedPlan


def kept_rows(plan: ShedPlan, partition: int, first: int, end: int) -> npt.NDArray[np.bool_]:
    """Which rows of [first, end), inside an opened segment, a plan keeps that needs only places."""
    nowhere: Any = None
    mask = plan.keeps(nowhere, partition, np.arange(first, end, dtype=np.int64), ())
    return np.ones(end - first, np.bool_) if mask is None else mask
