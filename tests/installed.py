"""Kinds of streams that are installed as a package's are; one of them, `far`, is reached by addresses.

`far:///some/directory` is a stream whose rows are kept by somebody else, as far as Penstock can know.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.streams import opening
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.kinds.base import Opening, Writing
from penstock.streams.protocol import StreamState
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

POINTS = """[penstock.streams]
gappy = tests.gappy:GAPPY
far = tests.installed
broken = tests.gappy:NoLog
closed = tests.installed:POINTS
"""


class FarLog(EmbeddedLog):
    """A stream at an address: it knows its address alone, and keeps nothing for Penstock."""

    def __init__(self, ref: StreamRef, how: Opening, writing: Writing | None = None) -> None:
        fsync = (writing or Writing()).fsync
        super().__init__(ref.id.partition("://")[2], fsync, how.clock, verify=how.verify)
        self.ref = ref

    @property
    def state(self) -> StreamState:
        raise InvalidInputError("a far stream keeps nothing for Penstock", self.name, "link to it")

    @state.setter
    def state(self, state: StreamState) -> None:
        """Nobody wants it."""


def open(ref: StreamRef, how: Opening) -> FarLog:
    return FarLog(ref, how)


def open_writer(ref: StreamRef, how: Opening, writing: Writing) -> FarLog:
    return FarLog(ref, how, writing)


def install(folder: Path) -> None:
    """Makes a folder that lets each Python process with it on its path open streams of these kinds."""
    (folder / "kinds-1.dist-info").mkdir(parents=True)
    (folder / "kinds-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: kinds\nVersion: 1\n")
    (folder / "kinds-1.dist-info" / "entry_points.txt").write_text(POINTS)


def install_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process open streams of these kinds until the test ends."""
    install(folder)
    assert str(folder) not in sys.path
    monkeypatch.syspath_prepend(str(folder))
    for name in ("_DIRECTORIES", "_ADDRESSES"):
        monkeypatch.setattr(opening, name, dict(getattr(opening, name)))
