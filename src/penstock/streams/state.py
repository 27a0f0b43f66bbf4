"""What Penstock keeps about a stream: files in folders of one directory, beside the stream's rows or alone.

<home>/plans/     plan journals, see `penstock.grants.journal`
<home>/readers/   progress of readers, see `penstock.streams.registry`
<home>/lanes/     progress of backfills, see `penstock.lanes.progress`
<home>/files/     how far a feed has read its files, see `penstock.pipeline.feed.intake`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.streams.protocol import StateKind

Trim = Callable[[int, int], int]
"""Forgets rows of a partition before a position; returns the first position that is left."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a stream in a directory.

    Attributes:
        home: The directory. It is the stream's own if the stream lies in one on this machine.
        trim: Forgets rows that nobody needs; a stream that others trim only says where it begins.
        clock: Seconds since the epoch.
    """

    home: Path
    trim: Trim
    clock: Callable[[], float]

    def folder(self, kind: StateKind) -> Path:
        """The folder with one kind of files; it may not exist yet."""
        return self.home / kind
