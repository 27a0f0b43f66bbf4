"""How a new stream is laid out, and when its appends are forced to the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from penstock.vocabulary.errors import InvalidInputError, UnknownNameError, require_positive

Fsync = Literal["always", "interval", "never"]


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How a stream is laid out.

    Attributes:
        partitions: Log partitions; each has one writer process.
        key: Column whose hash groups rows, or none.
        key_buckets: Number of buckets of the key's hash; headers count rows by bucket.
        segment_rows: Most rows of a segment, the unit that shedding can skip unread.
        file_bytes: Size at which a data file is closed and the next begun: the unit that trimming removes.
        origin: Whether this is a shared stream: rows keep `_sic`, `_weight` and `_kept` of their origin.
    """

    partitions: int = 1
    key: str | None = None
    key_buckets: int = 64
    segment_rows: int = 8192
    file_bytes: int = 64 << 20
    origin: bool = False

    def __post_init__(self) -> None:
        for name in ("partitions", "key_buckets", "segment_rows", "file_bytes"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1", getattr(self, name), "leave it out")


@dataclass(frozen=True, slots=True)
class FsyncPolicy:
    """When appended rows are forced to the disk.

    Attributes:
        fsync: "always" syncs with every append. "interval" syncs at most `interval_s` after an append,
            together with later appends, and on close. "never" leaves it to the operating system. Under all
            three, appended rows survive a crash of the process.
        interval_s: Seconds of rows that a power cut may lose with "interval".
    """

    fsync: Fsync = "never"
    interval_s: float = 1.0

    def __post_init__(self) -> None:
        if self.fsync not in get_args(Fsync):
            raise UnknownNameError("fsync", self.fsync, get_args(Fsync))
        require_positive("fsync_interval_s", self.interval_s, "seconds, for example 1.0")
