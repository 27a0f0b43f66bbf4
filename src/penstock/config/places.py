"""Names and places in configuration files: where a path leads, and where a stream lies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from penstock.config.mistakes import refused, unknown_name
from penstock.streams.opening import address_schemes
from penstock.vocabulary.names import is_word
from penstock.vocabulary.stream_ref import StreamRef


def located_text(value: str, info: ValidationInfo) -> str:
    """A path made absolute, from the directory of its file where that is known; an address is left alone."""
    if not value.strip():
        raise refused("must not be empty", repr(value), "give a path")
    base = (info.context or {}).get("base")
    if "://" in value or base is None:
        return value
    return os.path.abspath(Path(base) / Path(value).expanduser())


def _text_of_path(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


Place = Annotated[str, BeforeValidator(_text_of_path), AfterValidator(located_text)]
"""A path, or the address of a file system that Spark knows (hdfs://...)."""


def _local(value: object, info: ValidationInfo) -> object:
    text = _text_of_path(value)
    if isinstance(text, str) and "://" in text:
        raise refused("must be a directory of this machine", repr(text), "give a path")
    return located_text(text, info) if isinstance(text, str) else value


Directory = Annotated[Path, BeforeValidator(_local)]


def checked_name(name: str) -> str:
    """A name that files, tables and command lines can have."""
    if not is_word(name):
        raise refused("must have a name of letters, digits, _ and -", repr(name), "for example gold")
    return name


Name = Annotated[str, AfterValidator(checked_name)]


def _stream_place(text: str, info: ValidationInfo) -> str:
    """The address or the directory of a stream. A configuration that another process has read is believed."""
    ref = StreamRef.of(text)
    if ref.scheme == "file":
        return ref.id
    if "@" in ref.address:  # the address is shown in plans, pages and errors, and is written to disk
        hidden = f"{ref.scheme}://...@{ref.id.rpartition('@')[2]}"
        raise refused("must not have a user or a password", repr(hidden), "leave them out of the address")
    if "base" not in (info.context or {}):
        return text
    if ref.scheme not in (known := address_schemes()):
        raise unknown_name(f"{ref.scheme}://", [f"{scheme}://" for scheme in known])
    if not ref.name or "://" not in ref.address:
        raise refused(
            "must end in the stream's name", repr(text), f"for example {ref.scheme}://host:port/orders"
        )
    return text


StreamPlace = Annotated[Place, AfterValidator(_stream_place)]
"""Where a stream lies: a directory, or an address such as grpc://host:port/orders."""
