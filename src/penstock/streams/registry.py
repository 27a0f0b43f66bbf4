"""The registry of a stream's readers and their progress, by which retention trims rows.

Each reader has one small JSON file, replaced whole, so a crash leaves the old progress or the new one. A lock
puts changes in order, because a planner and a backfill change the same file. A reader that will not come back
keeps its rows on disk until somebody calls `forget`: the registry does not guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock.streams.descriptor import check_partition
from penstock.streams.files import locked, replace_text
from penstock.streams.protocol import StreamLog
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.names import is_file_name

MOST_LETTERS = 80
"""Most letters of a reader's id: a query's name, a dash and twelve hexadecimal digits have at most 77."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader's durable progress.

    Attributes:
        name: The reader's id.
        positions: By partition, the first row the reader may still ask for.
        pinned: By partition, the first row that the reader's shed lane needs; absent if none is needed.
        seen_s: When the reader's progress was last written.
        ended: The reader will not come back; only rows that are pinned for it stay.
    """

    name: str
    positions: Mapping[int, int]
    pinned: Mapping[int, int]
    seen_s: float
    ended: bool = False

    def needs_from(self, partition: int) -> int:
        """First position of a partition that must stay for this reader."""
        position = self.positions.get(partition, 0)
        return min(position, self.pinned.get(partition, position))

    def keeps_from(self, partition: int) -> int | None:
        """First position of a partition that a trim leaves for this reader; `None` for nothing."""
        return self.pinned.get(partition) if self.ended else self.needs_from(partition)


class ReaderRegistry:
    """The readers of one stream, in files of the stream's state."""

    def __init__(self, log: StreamLog) -> None:
        self.log, self._state = log, log.state
        self.folder = self._state.folder("readers")

    def advance(
        self,
        name: str,
        positions: Mapping[int, int],
        pinned: Mapping[int, int] | None = None,
        back: bool = False,
    ) -> Reader:
        """Registers a reader or advances its progress; progress goes back only with `back`.

        Args:
            name: The reader's id: letters, digits, dot, dash, underscore.
            positions: By partition, the first row the reader may still ask for.
            pinned: By partition, the first row to keep for a shed lane; `None` leaves the pins as they are.
            back: Accepts lower positions too: somebody may have restored an older checkpoint.
        """
        self._check(name, {**positions, **(pinned or {})})
        with self._locked():
            known = self._load(name) or Reader(name, {}, {}, 0.0)
            before = {} if back else known.positions
            moved = {p: max(position, before.get(p, position)) for p, position in positions.items()}
            reader = replace(
                known,
                positions={**known.positions, **moved},
                pinned=known.pinned if pinned is None else dict(pinned),
                ended=known.ended and not positions,
            )
            return self._save(reader)

    def pin(self, name: str, first: Mapping[int, int]) -> None:
        """Keeps a reader's rows from some positions on; pins that keep more stay as they are."""
        self._check(name, first)
        with self._locked():
            known = self._load(name) or Reader(name, dict(first), {}, 0.0)
            lower = {p: min(position, known.pinned.get(p, position)) for p, position in first.items()}
            pins = {**known.pinned, **lower}
            if pins != dict(known.pinned):
                self._save(replace(known, pinned=pins))

    def readers(self) -> list[Reader]:
        """All readers, by name."""
        names = sorted(path.stem for path in self.folder.glob("*.json"))
        return [reader for name in names if (reader := self._load(name)) is not None]

    def forget(self, name: str) -> None:
        """Removes a reader: the rows that only it needed may go at the next trim."""
        self._check(name)
        path = self.folder / f"{name}.json"
        if not path.exists():
            raise UnknownNameError("reader", name, [reader.name for reader in self.readers()])
        with self._locked():
            path.unlink(missing_ok=True)

    def retire(self, name: str) -> None:
        """Forgets a reader that will not come back; rows that are pinned for its shed lane still stay."""
        self._check(name)
        with self._locked():
            known = self._load(name)
            if known is not None and known.pinned:
                self._save(replace(known, ended=True))
            elif known is not None:
                (self.folder / f"{name}.json").unlink()

    def trim(self) -> dict[int, int]:
        """Trims, in each partition, rows that every reader is past; returns the first position left."""
        readers = self.readers()
        for reader in readers:
            if reader.ended and not reader.pinned:  # the reader's lane has been backfilled
                self.retire(reader.name)
        kept = {p: [reader.keeps_from(p) for reader in readers] for p in range(self.log.partitions)}
        least = {p: min((at for at in found if at is not None), default=None) for p, found in kept.items()}
        return {p: self.log.start(p) if at is None else self._state.trim(p, at) for p, at in least.items()}

    def _check(self, name: str, partitions: Mapping[int, int] | None = None) -> None:
        if not is_file_name(name, MOST_LETTERS):
            raise InvalidInputError(
                f"a reader's name is up to {MOST_LETTERS} letters, digits, dots, dashes",
                repr(name),
                "for example fraud-7f3a",
            )
        for partition in partitions or {}:
            check_partition(self.log, partition)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock"):
            yield

    def _save(self, reader: Reader) -> Reader:
        reader = replace(reader, seen_s=self._state.clock())
        replace_text(self.folder / f"{reader.name}.json", json.dumps(_encode(reader)))
        return reader

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
            stored.get("ended", False),
        )


def _encode(reader: Reader) -> dict[str, object]:
    return {
        "positions": {str(p): position for p, position in reader.positions.items()},
        "pinned": {str(p): position for p, position in reader.pinned.items()},
        "seen_s": reader.seen_s,
        **({"ended": True} if reader.ended else {}),
    }
