"""The protocol of a shed plan: which segments of a grant it opens, and which of their rows it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

Needs = Literal["places", "keys", "values"]
"""What a plan must know of a row: its position (places), the bucket of its key, or its values."""


class Keyed(Protocol):
    """The part of a stream that a plan by key needs."""

    @property
    def key_column(self) -> str | None:
        """The column whose hash groups rows, if the stream declares one."""
        ...

    @property
    def key_buckets(self) -> int:
        """How many values that hash has."""
        ...


class ShedPlan(Protocol):
    """Which rows of a grant are kept. Frozen: every process gets the same rows, before or after a crash."""

    @property
    def needs(self) -> Needs:
        """What `keeps` must know of rows."""
        ...

    @property
    def keeps_all(self) -> bool:
        """Whether the plan sheds nothing."""
        ...

    @property
    def keeps_whole_segments(self) -> bool:
        """Whether every row of an opened segment is kept."""
        ...

    def opens(self, partition: int, first_positions: Numbers) -> Bools:
        """Which segments are opened, by their first positions; the others are dropped unread."""
        ...

    def keeps(
        self, stream: Keyed, partition: int, positions: Numbers, rows: Sequence[pa.RecordBatch]
    ) -> Bools | None:
        """Which rows of opened segments are kept; `None` for all of them.

        Args:
            stream: The stream of the rows.
            partition: The partition of the rows.
            positions: Positions of the rows.
            rows: The rows in the order of their positions; may be empty if the plan needs "places" alone.
        """
        ...

    def chance(self, key_buckets: int = 0) -> float | None:
        """Probability that a row which is not late is kept; a kept row has the weight one over it.

        `None` if the probability is not known: the plan chose segments, but not at random, or rows by values.
        """
        ...

    @property
    def carries_over(self) -> bool:
        """Whether a following grant without rows keeps this plan: decided windows stay decided."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults, so that offsets stay short."""
        ...
