"""Kinds of streams: by whom a stream is opened, and written if it can be.

An address (`grpc://host:port/readings`) names the kind of its stream by its scheme. A directory of this
machine has a `stream.json` that names the kind. A kind that is not Penstock's own is an entry point of the
group `penstock.streams`: its name is the scheme, or the kind in `stream.json`; its object is a `StreamKind`.
So every process in which the kind's package is installed can open the stream: the driver, planners, the
control plane, executors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from penstock.streams.layout import Fsync
from penstock.streams.protocol import StreamLog, WritableLog
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.stream_ref import StreamRef

ENTRY_POINTS = "penstock.streams"
"""Group of the entry points of packages that keep streams."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Opening:
    """How a stream is opened. A kind leaves alone what does not concern it.

    Attributes:
        clock: Seconds since the epoch.
        verify: Whether bytes are checked when they are read.
        token: What the keeper of the stream wants to hear; `None` if nobody gave a token.
    """

    clock: Clock = time.time
    verify: bool = True
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Writing:
    """How a stream on this machine is written.

    Attributes:
        fsync: When appended rows are synced, see `FsyncPolicy`.
        fsync_interval_s: Interval of fsync="interval".
    """

    fsync: Fsync = "never"
    fsync_interval_s: float = 1.0


class StreamKind(Protocol):
    """Opens streams of one kind; a module with such a function is one, too."""

    def open(self, ref: StreamRef, how: Opening) -> StreamLog:
        """Opens a stream for reading, anew each time.

        The `state` of a log at an address may be refused: a flow keeps the state in a directory of its own.
        """
        ...


@runtime_checkable
class WritableKind(StreamKind, Protocol):
    """Opens streams of one kind, for reading and for appending."""

    def open_writer(self, ref: StreamRef, how: Opening, writing: Writing) -> WritableLog:
        """Opens a stream for appending."""
        ...


def find_kind(name: str, own: dict[str, StreamKind], what: str) -> StreamKind:
    """The kind of a name: one of Penstock's own, or one of an installed package.

    Args:
        name: The scheme of an address, or the kind in a `stream.json`.
        own: Penstock's own kinds that have such a name. An installed kind is added to them.
        what: What the name is, as an error says it.
    """
    if name in own:
        return own[name]
    installed = {found.name: found for found in entry_points(group=ENTRY_POINTS)}
    if name not in installed:
        raise UnknownNameError(what, name, [*own, *installed])
    hint = f"install its package anew, or correct its entry point in the group {ENTRY_POINTS}"
    try:
        kind = installed[name].load()
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"what opens streams of kind {name} can be imported", f"{installed[name].value}: {error}", hint
        ) from error
    if not callable(getattr(kind, "open", None)):
        raise InvalidInputError(
            f"what opens streams of kind {name} has a function open(ref, how)", installed[name].value, hint
        )
    own[name] = kind
    found: StreamKind = kind
    return found


def schemes(own: dict[str, StreamKind]) -> list[str]:
    """Schemes that an address may have."""
    return sorted({*own, *(found.name for found in entry_points(group=ENTRY_POINTS))})
