"""The real control server without sockets: its messages, its holding of questions, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Generator
from typing import Any

from penstock.host.client import VERSION, ControlSilentError
from penstock.host.operations import Operations, poll_s
from penstock.host.server import ControlServer
from penstock.sim.microbatch import VirtualCluster


class Held(BaseException):
    """A source waits: virtual time passes, then the same call is made again."""

    def __init__(self, seconds: float, held: bool = True) -> None:
        super().__init__(f"waits {seconds} s")
        self.seconds, self.held = seconds, held


class RefusedError(Exception):
    """The control plane refused a message that it should take."""


class _Suspended:
    def __await__(self) -> Generator[None, None, None]:
        yield


class VirtualOperations(Operations):
    """A pause hands over to the cluster's time."""

    def __init__(self, cluster: VirtualCluster, server: ControlServer) -> None:
        super().__init__(cluster.governor, server.stop)
        self.cluster = cluster

    async def _pause(self) -> None:
        self._waiting += 1
        try:
            await _Suspended()
        finally:
            self._waiting -= 1

    def notify(self) -> None:
        self.cluster.wake()

    @property
    def poll_s(self) -> float:
        return poll_s(self._waiting)


class VirtualServer(ControlServer):
    """Serves the governor that a cluster has now."""

    def __init__(self, cluster: VirtualCluster) -> None:
        super().__init__("unix:///nowhere", cluster.governor)
        self._operations: VirtualOperations = VirtualOperations(cluster, self)

    @property
    def poll_s(self) -> float:
        return self._operations.poll_s

    def notify(self) -> None:
        self._operations.notify()


class Wire:
    """Finds the server of the cluster's present governor."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster, self._server = cluster, VirtualServer(cluster)

    @property
    def server(self) -> VirtualServer:
        if self._server.governor is not self.cluster.governor:
            self._server = VirtualServer(self.cluster)
        return self._server

    def tell(self, op: str, **message: Any) -> dict[str, Any]:
        """A driver's message, which is never held; refusals are returned."""
        if self.cluster.silent:
            return {}
        line = json.dumps({"v": VERSION, "op": op, **message}).encode()
        return _finished(self.server._answer(object(), line))


def _finished(answering: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    try:
        answering.send(None)
    except StopIteration as done:
        answer: dict[str, Any] = json.loads(json.dumps(done.value))
        rule = answer.get("error", {}).get("rule")
        if rule in ("a message is well formed", "the control plane can do it"):
            raise RefusedError(f"an error inside the control plane: {answer}") from None
        return answer
    answering.close()
    raise AssertionError("only questions are held")


class WireClient:
    """Stands for `ControlClient` in a source's `ControlLink`: one connection, one question at a time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._connection: object | None = None
        self._server: VirtualServer | None = None
        self._pending: tuple[bytes, Coroutine[Any, Any, dict[str, Any]]] | None = None
        self._broken = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def request(self, message: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        if self._wire.cluster.silent or self._broken:
            self._broken = False
            raise ControlSilentError("the control plane answers", "silence", "wait")
        if self._connection is None:
            self._connection, self._server = object(), self._wire.server
        assert self._server is not None
        # the same question again goes on with the one on hold, whatever is left of its time
        line = json.dumps({"v": VERSION, **message, "timeout_s": 5.0}).encode()
        if self._pending is None or self._pending[0] != line:
            if self._pending is not None:
                self._pending[1].close()
            self._pending = line, self._server._answer(self._connection, line)
        answering = self._pending[1]
        try:
            answering.send(None)
        except StopIteration as done:
            self._pending = None
            answer: dict[str, Any] = json.loads(json.dumps(done.value))
            if "error" in answer:
                raise RefusedError(str(answer["error"])) from None
            return answer
        except Exception:
            self._pending = None
            raise
        raise Held(self._server.poll_s)

    def lose(self) -> None:
        """The connection breaks: both sides notice."""
        self._broken = self._connection is not None
        self.close()

    def close(self) -> None:
        """Ends the connection: the control plane notices."""
        connection, server, pending = self._connection, self._server, self._pending
        self._connection = self._server = self._pending = None
        if pending is not None:
            pending[1].close()
        if connection is not None and server is not None and server.governor is self._wire.cluster.governor:
            server.governor.leave(connection)
            server.notify()
