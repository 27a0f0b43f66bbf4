"""Small files that are written whole or not at all, and locks."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replaces a file's content; after a crash the file has the old content or the new."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Replaces a file's content by bytes; after a crash the file has the old content or the new."""
    write_beside(path, content).replace(path)
    sync_directory(path.parent)


def write_beside(path: Path, content: bytes) -> Path:
    """Writes content to a new file beside `path`; it is on disk when this returns."""
    # named by process and thread: two threads that replace one file must not share the new file
    beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return beside


def sync_directory(directory: Path) -> None:
    """Syncs a directory, so that names of new files in it survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Holds a lock file; waits while another process holds it, or raises `BlockingIOError` then."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
