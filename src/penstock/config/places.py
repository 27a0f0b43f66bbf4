"""Names and places in configuration files: where a path leads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from penstock.config.mistakes import refused
from penstock.vocabulary.names import is_word


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
