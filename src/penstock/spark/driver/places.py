"""Where the streams of a flow are: by which place planners, the control plane and executors open each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.config.flow import FlowConfig
from penstock.streams.kinds.linked import make_link
from penstock.streams.opening import open_stream, stream_exists, streams_in
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.stream_ref import StreamRef


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream is.

    Attributes:
        stream: A directory of this machine, with what Penstock keeps about the stream. Its rows may be
            elsewhere, see `penstock.streams.kinds.linked`.
        read_from: Where executors read the rows: a directory, or an address.
    """

    stream: Path
    read_from: str


def place_of(config: FlowConfig, name: str) -> Place:
    """Where a stream of a flow is. Of a stream at an address, the flow's log gets a link.

    Raises:
        PenstockError: There is no such stream, or it cannot be opened.
    """
    given = config.streams.get(name)
    if given is None:
        return _in_log(config, name)
    ref = StreamRef.of(given)
    if ref.scheme != "file":
        open_stream(ref)  # a link to nowhere would stay
        make_link(config.log / name, ref)
        return Place(config.log / name, ref.id)
    if not stream_exists(ref.id):
        raise InvalidInputError(
            f"stream {name} is at {ref}, as `streams` says", "no stream there", "create it first"
        )
    return Place(Path(ref.id), ref.id)


def _in_log(config: FlowConfig, name: str) -> Place:
    found = config.log / name
    if not stream_exists(found):
        known = {*config.streams, *(directory.name for directory in streams_in(config.log))}
        if known:
            raise UnknownNameError("a stream", name, known)
        raise InvalidInputError(
            f"stream {name} is in the log at {config.log}", "no stream there", "create it first"
        )
    return Place(found, f"{config.read_from or config.log}/{name}")


def check_in_log(config: FlowConfig, name: str) -> None:
    """Refuses to share a result as a stream that lies elsewhere: the flow writes streams of its log alone."""
    if name in config.streams:
        raise InvalidInputError(
            f"shared stream {name} lies in the log at {config.log}",
            f"{config.streams[name]}, as `streams` says",
            "share the result under another name",
        )
