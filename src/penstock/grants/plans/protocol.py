"""The protocol of a shed plan: which segments it opens, which of their rows it keeps, what it drew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

Span = tuple[int, Numbers, Numbers]
"""A partition, first positions of its segments in a grant, and rows of the grant in each segment."""

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


@dataclass(frozen=True, slots=True, eq=False)
class DrawnBuckets:
    """Buckets of a key, drawn in a random order.

    Attributes:
        kept: How many buckets are kept, the first in the order.
        ranks: Each bucket's rank in the order.
    """

    kept: int
    ranks: Numbers


@dataclass(frozen=True, slots=True)
class DrawnSegments:
    """Segments, of which some were opened.

    Attributes:
        chance: Probability that a segment was opened; 1 if the choice was not random.
        drawn: Fraction of the rows that lie in opened segments, if weights are taken from it instead of
            `chance`; else 0.
        seed: Seed of the coins that put opened segments into random order.
    """

    chance: float
    drawn: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """What a plan drew at random.

    Attributes:
        within: 1 / the probability that a row of an opened segment was kept, less 1.
        segments: `None` if the plan did not choose among segments.
        buckets: `None` if the plan did not choose among buckets of the key.
    """

    within: float = 0.0
    segments: DrawnSegments | None = None
    buckets: DrawnBuckets | None = None


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

    def fitted(self, spans: Iterable[Span]) -> ShedPlan:
        """The plan for a grant with these segments; most plans are the same for all grants.

        Args:
            spans: By partition, the segments of the grant. A plan that needs no fitting does not read them.
        """
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

    def kept_buckets(self, buckets: int) -> Bools | None:
        """Which buckets of the key are kept; `None` if more than a row's bucket decides.

        A plan that gives buckets opens every segment.
        """
        ...

    def chance(self, key_buckets: int = 0) -> float | None:
        """Probability that a row which is not late is kept; a kept row has the weight one over it.

        `None` if the probability is not known: the plan chose segments, but not at random, or rows by values.
        """
        ...

    def drawing(self, key_buckets: int = 0) -> Drawing | None:
        """What the plan drew at random; `None` if it chose rows by values: the other rows had no chance."""
        ...

    @property
    def carries_over(self) -> bool:
        """Whether a following grant without rows keeps this plan: decided windows stay decided."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults, so that offsets stay short."""
        ...
