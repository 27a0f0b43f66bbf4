"""`stream.json`: what a stream is, written once, read by whoever opens it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from penstock.streams.files import replace_text, sync_directory
from penstock.vocabulary.errors import InvalidInputError

FORMAT = 1


class _Partitioned(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> int: ...


def check_partition(log: _Partitioned, partition: int) -> None:
    """Refuses a partition that the stream does not have."""
    if not 0 <= partition < log.partitions:
        raise InvalidInputError(
            f"stream {log.name} has partitions 0 to {log.partitions - 1}", partition, "use one"
        )


class _Named(_Partitioned, Protocol):
    def partition_name(self, partition: int) -> str: ...


def partition_label(log: _Named, partition: int) -> str:
    """How a message to a user names a partition: its number, and what the log itself calls it."""
    name = log.partition_name(partition)
    return f"partition {partition}" if name == str(partition) else f"partition {partition} ({name})"


def write_about(directory: Path, about: dict[str, Any], fill: Callable[[], None]) -> None:
    """Makes a stream: `fill` makes its other files; stream.json is written last and makes the stream exist.

    The stream's id tells it from another stream that is created later in the same directory.
    """
    if (directory / "stream.json").exists():
        raise InvalidInputError("a stream is created once", f"'{directory.name}' exists", "open it instead")
    directory.mkdir(parents=True, exist_ok=True)
    fill()
    described = {"format": FORMAT, "id": uuid.uuid4().hex, **about}
    replace_text(directory / "stream.json", json.dumps(described, indent=2))
    sync_directory(directory.parent)


def read_about(directory: Path, kind: str | None = None) -> dict[str, Any]:
    """The content of stream.json; `kind` is the kind of stream that the caller can read."""
    path = directory / "stream.json"
    if not path.exists():
        raise InvalidInputError(
            "a stream has been created", f"no stream at '{directory.name}'", "create it first"
        )
    try:
        about: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        about = {"format": "no JSON"}
    got = about.get("format") if isinstance(about, dict) else "no object"
    if got != FORMAT:
        raise InvalidInputError(
            f"a stream has format {FORMAT}", got, "read it with the Penstock version that wrote it"
        )
    found = about.get("kind", "embedded")
    if kind is not None and found != kind:
        raise InvalidInputError(
            f"the stream is {kind}",
            f"{directory.name} is {found}",
            "open it with open_stream",
        )
    return about
