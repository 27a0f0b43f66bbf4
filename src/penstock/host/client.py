"""The client of a control plane, for sources, flows and the CLI. A message and its answer are JSON lines."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

from penstock.vocabulary.errors import InvalidInputError, UnmetError

VERSION = 1
"""Version of the messages. A change that an older control plane must not ignore gets a new version."""
PREFIX = "unix://"


class ControlSilentError(UnmetError):
    """The control plane did not answer: it does not run, or it does not keep up."""


class ControlClient:
    """A connection to a control plane. The client connects with its first message, and again after a failure.

    Args:
        address: `unix:///path`.
        timeout_s: How long an answer may take.
    """

    def __init__(self, address: str, timeout_s: float = 5.0) -> None:
        if not address.startswith(PREFIX):
            raise InvalidInputError(
                "a control plane's address is unix:///path", repr(address), "see flow.address"
            )
        self.address, self.timeout_s = address, timeout_s
        self._socket: socket.socket | None = None
        self._buffer = b""

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def connect(self) -> None:
        """Connects, unless the client is connected already."""
        if self._socket is not None:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self.timeout_s)
        try:
            connection.connect(self.address.removeprefix(PREFIX))
        except OSError as error:
            connection.close()
            raise ControlSilentError(
                f"the control plane at {self.address} answers", error, "is it running?"
            ) from error
        if (user := peer_user(connection)) not in (None, 0, os.getuid()):
            connection.close()
            raise ControlSilentError(
                f"the control plane at {self.address} is of this user",
                f"one of user {user}",
                "use a path in a directory of your own",
            )
        self._socket, self._buffer = connection, b""

    def request(self, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Sends a message and returns its answer.

        Raises:
            ControlSilentError: No answer came in time. The connection is closed.
            InvalidInputError: The control plane refused the message.
        """
        self.connect()
        assert self._socket is not None
        try:
            self._socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
            self._socket.sendall(json.dumps({"v": VERSION, **message}).encode() + b"\n")
            line = self._read_line()
        except OSError as error:
            self.close()
            raise ControlSilentError(
                f"the control plane at {self.address} answers", repr(error), "is it running?"
            ) from error
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            self.close()
            raise ControlSilentError(
                f"the control plane at {self.address} answers in JSON", repr(line[:60]), "restart it"
            ) from error
        if "error" in answer:
            refused = answer["error"]
            raise InvalidInputError(refused["rule"], refused["got"], refused["hint"])
        return answer

    def _read_line(self) -> bytes:
        assert self._socket is not None
        while b"\n" not in self._buffer:
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionResetError("closed by the control plane")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def peer_user(connection: socket.socket) -> int | None:
    """Returns the user whose process serves a Unix socket; `None` if the system does not tell.

    The client must check the user: in a shared directory, another user may make the socket's path first.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", found)
    return int(user)
