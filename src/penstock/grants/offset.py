"""The offset that Spark logs for a governed reader: positions, plan and books, in one versioned JSON dict.

`partitions()` trusts the end offset alone: Spark does not log the start of batch 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.grants.plans import KEEP_ALL, ShedPlan, plan_from_json
from penstock.vocabulary.errors import InvalidInputError

FORMAT = 2
"""Incremented with every field that an older Penstock must not ignore. 2 added `marks`."""

_READ = (1, FORMAT)

Positions = Mapping[int, int]
"""Partition of the log -> position."""


@dataclass(frozen=True, slots=True)
class Books:
    """Counts of rows that were decided about since the reader's first row: `offered = admitted + shed`.

    Rows between the offset's end and the log's end are waiting; they are not in the books.
    """

    admitted: int = 0
    sampled: int = 0
    """Rows shed by the plan."""
    late: int = 0
    """Rows shed because they would have completed after the target."""
    expired: int = 0
    """Rows trimmed from the log before they were read."""
    poison: int = 0
    """Rows set aside with a grant that failed again and again."""

    @property
    def shed(self) -> int:
        return self.sampled + self.late + self.expired + self.poison

    @property
    def offered(self) -> int:
        return self.admitted + self.shed

    def plus(self, other: Books) -> Books:
        names = ("admitted", "sampled", "late", "expired", "poison")
        return Books(*(getattr(self, name) + getattr(other, name) for name in names))

    def to_json(self) -> list[int]:
        return [self.admitted, self.sampled, self.late, self.expired, self.poison]


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a reader is, and what its last grant decided.

    Attributes:
        reader: The reader's id, minted once.
        grant: Number of the last grant; 0 before the first.
        start: Positions at which the grant begins.
        end: Positions at which the grant ends; the next grant begins here.
        late: Rows of the grant before these positions are shed as late.
        plan: Which of the grant's other rows are kept.
        books: The reader's books up to `end`.
        ungoverned: The source granted the rows to itself, because no control plane answered.
        tick: A grant without rows, which lets Spark close windows.
        stream: Id of the stream to which the positions belong.
        sic: SIC of each row of the grant, by the rows that its stream had offered in the source time window.
        empty_before: Rows of directly preceding grants that admitted none. The next admitted rows represent
            these rows, too.
        empty: Value of `empty_before` for the next grant; 0 if this grant admits any row.
        marks: Marks of the rows right before `end`, see `streams.marks`. None in format 1.
    """

    reader: str
    start: Positions
    end: Positions
    grant: int = 0
    late: Positions = field(default_factory=dict)
    plan: ShedPlan = KEEP_ALL
    books: Books = Books()
    ungoverned: bool = False
    tick: bool = False
    stream: str = ""
    sic: float = 0.0
    empty_before: int = 0
    empty: int = 0
    marks: Positions = field(default_factory=dict)

    @classmethod
    def initial(
        cls, reader: str, positions: Positions, stream: str = "", marks: Positions | None = None
    ) -> Offset:
        return cls(reader, positions, positions, stream=stream, marks=marks or {})

    def to_json(self) -> dict[str, Any]:
        encoded: dict[str, Any] = {
            "penstock": FORMAT,
            "reader": self.reader,
            "grant": self.grant,
            "start": encode_positions(self.start),
            "end": encode_positions(self.end),
            "books": self.books.to_json(),
        }
        for name in ("late", "marks"):
            if getattr(self, name):
                encoded[name] = encode_positions(getattr(self, name))
        if self.plan != KEEP_ALL:
            encoded["plan"] = self.plan.to_json()
        for name in ("ungoverned", "tick"):
            if getattr(self, name):
                encoded[name] = True
        for name in ("stream", "sic", "empty_before", "empty"):
            if getattr(self, name):
                encoded[name] = getattr(self, name)
        return encoded

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Offset:
        version = encoded.get("penstock")
        if version not in _READ:
            raise InvalidInputError(
                f"an offset of a governed reader has format {' or '.join(map(str, _READ))}",
                repr(version),
                "the checkpoint is of another source or a newer Penstock: use that one, or a new "
                "checkpointLocation",
            )
        return cls(
            reader=encoded["reader"],
            grant=encoded["grant"],
            start=decode_positions(encoded["start"]),
            end=decode_positions(encoded["end"]),
            late=decode_positions(encoded.get("late", {})),
            plan=plan_from_json(encoded.get("plan", {})),
            books=Books(*encoded["books"]),
            ungoverned=encoded.get("ungoverned", False),
            tick=encoded.get("tick", False),
            stream=encoded.get("stream", ""),
            sic=encoded.get("sic", 0.0),
            empty_before=encoded.get("empty_before", 0),
            empty=encoded.get("empty", 0),
            marks=decode_positions(encoded.get("marks", {})),
        )

    @property
    def rows(self) -> int:
        """Number of rows this grant decided about."""
        start, end = self.start, self.end
        if start.keys() == end.keys():  # nearly always: partitions only come
            return sum(end.values()) - sum(start.values())
        return sum(end.values()) - sum(start.get(p, 0) for p in end)

    @property
    def represented_rows(self) -> int:
        """Rows that the admitted rows represent: this grant's, and those of empty grants right before it."""
        return self.empty_before + self.rows

    def advanced(
        self, end: Positions, late: Positions, plan: ShedPlan, books: Books, ungoverned: bool = False
    ) -> Offset:
        """The offset after the next grant, without marks; `books` are the books of that grant alone."""
        return replace(
            self,
            grant=self.grant + 1,
            start=self.end,
            end=dict(end),
            late={p: position for p, position in late.items() if position > self.end.get(p, 0)},
            plan=plan,
            books=self.books.plus(books),
            ungoverned=ungoverned,
            tick=dict(end) == dict(self.end),
            empty_before=0,
            empty=0,
            marks={},
        )

    def follows(self, before: Offset, set_aside: bool, admitted: int) -> Offset:
        """This offset with `empty_before` and `empty` filled in.

        Args:
            before: The offset before this one.
            set_aside: Whether the rows that `before` admits are set aside, that is, not processed.
            admitted: Number of rows that this grant admits.
        """
        following = replace(self, empty_before=before.represented_rows if set_aside else before.empty)
        return replace(following, empty=0 if admitted else following.represented_rows)


def encode_positions(positions: Positions) -> dict[str, int]:
    """Positions as a JSON object, whose keys are texts."""
    return {str(p): int(position) for p, position in positions.items()}


def decode_positions(encoded: Mapping[str, int]) -> dict[int, int]:
    """Positions of a JSON object of `encode_positions`."""
    return {int(p): int(position) for p, position in encoded.items()}


def limited(start: Positions, ends: Positions, rows: int | None) -> dict[int, int]:
    """Cuts ends to a total number of rows, divided in proportion to the rows that wait in each partition.

    No end lies before its start. A partition without an end ends where it starts: the log object that gave
    the ends may not know of the partition yet. Without its position, its rows would be read again.
    """
    # a paced stream's clock may go back
    ends = {**start, **{p: max(end, start.get(p, 0)) for p, end in ends.items()}}
    waiting = {p: end - start.get(p, 0) for p, end in ends.items()}
    total = sum(waiting.values())
    if rows is None or total <= rows:
        return ends
    return {p: start.get(p, 0) + -(-waiting[p] * rows // total) for p in ends}
