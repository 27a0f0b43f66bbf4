"""Who reads a stream, and how far: the registry that retention goes by.

One small JSON file a reader, replaced whole, so a crash leaves the old progress or the new one. A reader
that is gone for good keeps its rows on disk until it is forgotten: that is said, not guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import InvalidInputError, UnknownNameError
from penstock.log.about import check_partition
from penstock.log.files import replace_text
from penstock.log.protocol import StreamLog

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader's durable progress.

    Attributes:
        name: Its id.
        positions: By partition, the first row it may still ask for.
        pinned: By partition, the first row that something else of it needs (a shed lane); none where absent.
        seen_s: When its progress was last written.
    """

    name: str
    positions: Mapping[int, int]
    pinned: Mapping[int, int]
    seen_s: float

    def needs_from(self, partition: int) -> int:
        """First position of a partition that must stay for this reader."""
        position = self.positions.get(partition, 0)
        return min(position, self.pinned.get(partition, position))


class ReaderRegistry:
    """The readers of one stream, in its directory."""

    def __init__(self, log: StreamLog) -> None:
        self.log = log
        self.folder = log.directory / "readers"

    def advance(
        self, name: str, positions: Mapping[int, int], pinned: Mapping[int, int] | None = None
    ) -> Reader:
        """Registers a reader or moves it on; progress never goes back.

        Args:
            name: The reader's id: letters, digits, dot, dash, underscore.
            positions: By partition, the first row it may still ask for.
            pinned: By partition, the first row to keep beside; `None` leaves the pins as they are.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                "a reader's name is up to 80 letters, digits, dots, dashes",
                repr(name),
                "for example fraud-7f3a",
            )
        for partition in {**positions, **(pinned or {})}:
            check_partition(self.log, partition)
        known = self._load(name)
        before = known.positions if known else {}
        moved = {p: max(position, before.get(p, 0)) for p, position in {**before, **positions}.items()}
        pins = (known.pinned if known else {}) if pinned is None else pinned
        reader = Reader(name, moved, dict(pins), self.log.clock())
        self.folder.mkdir(exist_ok=True)
        replace_text(self.folder / f"{name}.json", json.dumps(_encode(reader)))
        return reader

    def readers(self) -> list[Reader]:
        """All readers, by name."""
        names = sorted(path.stem for path in self.folder.glob("*.json"))
        return [reader for name in names if (reader := self._load(name)) is not None]

    def forget(self, name: str) -> None:
        """Removes a reader: the rows that only it needed may go at the next trim."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            raise UnknownNameError("reader", name, [reader.name for reader in self.readers()])
        path.unlink()

    def trim(self) -> dict[int, int]:
        """Forgets, in each partition, rows that every reader is past; returns the first position left."""
        readers = self.readers()
        if not readers:
            return {p: self.log.start(p) for p in range(self.log.partitions)}
        return {
            p: self.log.trim(p, min(reader.needs_from(p) for reader in readers))
            for p in range(self.log.partitions)
        }

    def _load(self, name: str) -> Reader | None:
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        stored = json.loads(path.read_text())
        return Reader(
            name,
            {int(p): position for p, position in stored["positions"].items()},
            {int(p): position for p, position in stored["pinned"].items()},
            stored["seen_s"],
        )


def _encode(reader: Reader) -> dict[str, object]:
    return {
        "positions": {str(p): position for p, position in reader.positions.items()},
        "pinned": {str(p): position for p, position in reader.pinned.items()},
        "seen_s": reader.seen_s,
    }
