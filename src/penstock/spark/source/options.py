"""What `flow.read_stream` tells a source, as one text in Spark's options."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.policies.quality.sic import STW_S
from penstock.streams.starting import Starting

FORMAT_NAME = "penstock"
"""Name of the governed source for `spark.readStream.format`, and of its only option."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options that `flow.read_stream` gives to a source, as one string in Spark's options.

    Attributes:
        stream: The stream's directory, for the planner.
        read_from: Where executors read the stream: the same directory, or a Flight address.
        query: The query's name; readers of one query share their micro-batches.
        cls: The query's class.
        address: Address of the control plane; empty for an ungoverned source.
        metadata: Metadata columns, in order.
        tasks: Most tasks that read one batch.
        divided: Whether each ungoverned batch is divided into `tasks` tasks, however few rows they have.
        max_rows: Most rows of an ungoverned batch; 0 for all that wait.
        total_rows: Rows after which an ungoverned source ends; 0 for never.
        fail_open_after_s: Silence of the control plane after which the source goes on by itself.
        poison_after: Failures after which a grant is set aside; 0 for never.
        shed_lane: Whether shed rows stay in the log.
        starting: Where a new reader begins, see `penstock.streams.starting`.
        slot: Which of its query's readers this source is; empty for a reader that is a query of its own.
        token: Token of the `read_stream` call, by which the driver names its queries to the control plane.
        driver: Id of the flow, that is, of the Spark application.
        stw_s: The source time window, from which rows have their SIC.
        beside: For an ungoverned stream of changes: the query in whose micro-batches it is read; else empty.
    """

    stream: str
    read_from: str
    query: str = ""
    cls: str = ""
    address: str = ""
    metadata: tuple[str, ...] = ()
    tasks: int = 1
    divided: bool = False
    max_rows: int = 0
    total_rows: int = 0
    fail_open_after_s: float = 5.0
    poison_after: int = 0
    shed_lane: bool = False
    starting: Starting = "earliest"
    slot: str = ""
    token: str = ""
    driver: str = ""
    stw_s: float = STW_S
    beside: str = ""

    @property
    def governed(self) -> bool:
        """Whether the source asks for grants."""
        return bool(self.address) and not self.beside

    def to_option(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_option(cls, text: str) -> SourceOptions:
        values = json.loads(text)
        return cls(**{**values, "metadata": tuple(values["metadata"])})
