"""Files of a record with a size limit: they are kept in numbered parts, and the oldest parts are removed.

decisions.jsonl           the newest part, which is being written
decisions-000007.jsonl    part 7, which is complete; lower numbers are older
dropped.jsonl             a line for each part that was removed: its file, number and bytes
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARTS = 8
"""A part is an eighth of the limit, so that at least seven eighths of the limit are kept."""
DROPPED = "dropped.jsonl"


def numbered(path: Path) -> dict[int, Path]:
    """The complete parts of a file, by number, the oldest first."""
    found = {part.stem.removeprefix(f"{path.stem}-"): part for part in path.parent.glob(f"{path.stem}-*")}
    of_file = {name: part for name, part in found.items() if name.isdigit() and part.suffix == path.suffix}
    return {int(name): of_file[name] for name in sorted(of_file, key=int)}


def all_parts(path: Path) -> dict[int, Path]:
    """All parts of a file by number, the oldest first; the last one is being written."""
    found = numbered(path)
    return {**found, max(found, default=0) + 1: path}


class Parts:
    """The parts of files that are rotated together.

    Args:
        paths: The files.
        limit_bytes: How many bytes of each file are kept; `None` for all.
    """

    def __init__(self, paths: Sequence[Path], limit_bytes: int | None) -> None:
        self.paths, self.limit_bytes = tuple(paths), limit_bytes
        self.number = 1

    def is_full(self, size: int) -> bool:
        """Whether a file of this size is a complete part."""
        return self.limit_bytes is not None and size * PARTS >= self.limit_bytes

    def next(self) -> None:
        """Makes each file, which must be closed, a complete part, and removes surplus parts."""
        for path in self.paths:
            path.replace(path.with_name(f"{path.stem}-{self.number:06d}{path.suffix}"))
        self.number += 1
        for path in self.paths:
            complete = numbered(path)
            for number in sorted(complete)[: -(PARTS - 1)]:
                _drop(path, number, complete[number])

    def add(self, text: str) -> None:
        """Appends lines to the only file."""
        (path,) = self.paths
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(text)
            size = file.tell()
        if self.is_full(size):
            self.next()


def _drop(path: Path, number: int, part: Path) -> None:
    line = {"file": path.name, "part": number, "bytes": part.stat().st_size}
    with (path.parent / DROPPED).open("a", encoding="ascii", newline="\n") as file:
        file.write(json.dumps(line) + "\n")  # first: after a crash, a listed part may still exist
    part.unlink()


def dropped(folder: Path) -> dict[str, dict[str, Any]]:
    """Number of removed parts and bytes, by file of a record."""
    path, found = folder / DROPPED, dict[str, dict[str, Any]]()
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        total = found.setdefault(line["file"], {"parts": 0, "bytes": 0})
        total["parts"] += 1
        total["bytes"] += line["bytes"]
    return found
