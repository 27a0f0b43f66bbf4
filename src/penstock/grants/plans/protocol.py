"""What a shed plan is: which segments of a grant it opens, and which of their rows it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

Needs = Literal["places", "keys", "values"]
"""What a plan must know of a row: its position alone, the bucket of its key, or its values."""


class Keyed(Protocol):
    """What a plan by key must know of a stream."""

    @property
    def key_column(self) -> str | None: ...

    @property
    def key_buckets(self) -> int: ...


class ShedPlan(Protocol):
    """Which rows of a grant are kept. Frozen; the same rows for whoever asks, before or after a crash."""

    @property
    def needs(self) -> Needs:
        """What `keeps` must be given."""
        ...

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is shed by it."""
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
            stream: Whose rows they are.
            partition: Theirs.
            positions: Theirs.
            rows: They themselves, in the order of their positions; may be empty if the plan needs places.
        """
        ...

    def chance(self, key_buckets: int = 0) -> float | None:
        """Probability with which a row that is not late is kept: one over the weight of a kept row.

        `None` where it is not known: segments were chosen, and not at random, or rows by their values.
        """
        ...

    @property
    def carries_over(self) -> bool:
        """Whether a following grant without rows keeps this plan: windows that were decided stay decided."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Only what differs from keeping everything: offsets stay short."""
        ...
