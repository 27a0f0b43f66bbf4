"""The token that a log server mints at its start if it was given none, for processes of the same user.

<root>/.flight-<port>    JSON: address and token, readable by its owner alone

A server that refuses a call names this file. A client that may read the file is a process of the same user,
and calls again with the token. The client sends the token only to the address that is in the file, so a
stranger who listens at another address cannot get it.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from penstock.vocabulary.errors import InvalidInputError


def mint_token(root: Path, address: str) -> tuple[str, Path]:
    """A new token, and the file that holds the token until `forget_token`."""
    token, path = secrets.token_hex(32), root.absolute() / f".flight-{address.rpartition(':')[2]}"
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"address": address, "token": token}, file)
    except OSError as error:
        raise InvalidInputError(
            "a log server writes its token into the log's directory",
            f"{error.strerror or error} for {path}",
            "give a token, or serve without one: --no-token",
        ) from error
    return token, path


def forget_token(path: Path, token: str) -> None:
    """Removes the token's file, unless another server has replaced it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_text())["token"] == token:
            path.unlink()


def find_token(path: Path, address: str) -> str | None:
    """The token in a file, if the file belongs to this user alone and names the address."""
    try:
        # a stranger may have named any path: links are not followed, and a pipe is not waited for
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            own = about.st_uid == os.getuid() and not stat.S_IMODE(about.st_mode) & 0o077
            if not (own and stat.S_ISREG(about.st_mode)):
                return None
            stored = json.loads(file.read(4096))
        return str(stored["token"]) if stored["address"] == address else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
