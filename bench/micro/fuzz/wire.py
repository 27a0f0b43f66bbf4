"""The real desk of a control plane without sockets: its messages and its held questions, in virtual time."""

from __future__ import annotations

import json
from typing import Any

from penstock.control.core.events import Event
from penstock.control.core.instructions import FetchRows, Instruction, Recorded, Tell
from penstock.host.client import VERSION, ControlSilentError
from penstock.host.desk import Desk, Question
from penstock.host.wire import Hello, Message, parsed
from penstock.sim.microbatch import VirtualCluster
from penstock.streams.opening import open_stream
from penstock.vocabulary.errors import InvalidInputError


class Held(BaseException):
    """A source waits: virtual time passes, then the same call is made again."""

    def __init__(self, seconds: float, held: bool = True) -> None:
        super().__init__(f"waits {seconds} s")
        self.seconds, self.held = seconds, held


class RefusedError(Exception):
    """The control plane refused a message that it should take."""


class _NoHands:
    """The cluster does what takes time."""

    def fetch(self, wanted: FetchRows) -> None:
        raise AssertionError(f"the cluster carries out {wanted}")

    def record(self, line: Recorded) -> None:
        raise AssertionError(f"the cluster carries out {line}")

    def tell(self, instruction: Tell) -> None:
        raise AssertionError(f"the cluster carries out {instruction}")


class VirtualDesk(Desk):
    """A desk whose events go to a cluster, which carries out what its engine wants; answers come back."""

    def __init__(self, cluster: VirtualCluster) -> None:
        super().__init__(cluster.engine, cluster.at, _NoHands(), _never)
        self.cluster = cluster

    def handle(self, event: Event) -> None:
        self.cluster.handle(event)


class Wire:
    """Finds the desk of the cluster's present engine."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster, self._desk = cluster, VirtualDesk(cluster)

    @property
    def desk(self) -> VirtualDesk:
        if self._desk.engine is not self.cluster.engine:
            self._desk = VirtualDesk(self.cluster)
        return self._desk

    def tell(self, op: str, **message: Any) -> dict[str, Any]:
        """A driver's message, which is never held; refusals are returned."""
        if self.cluster.silent:
            return {}
        understood = _parsed({"op": op, **message})
        try:
            answer = self.desk.carry_out(understood)
        except InvalidInputError as error:
            return {"error": str(error)}
        assert not isinstance(answer, Question), "only sources ask"
        return _json(answer)


class WireClient:
    """Stands for `ControlClient` in a source's `ControlLink`: one connection, one question at a time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._connection: object | None = None
        self._desk: VirtualDesk | None = None
        self._joined: Hello | None = None
        self._pending: tuple[dict[str, Any], Question, float] | None = None
        """A question that is held, and until when."""
        self._broken = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def query(self) -> str:
        """The key of its query; the cluster wakes it when an answer is there."""
        assert self._joined is not None
        return self._joined.query

    def hear(self, instruction: Instruction) -> None:
        """The cluster's engine has an instruction for its reader."""
        assert self._joined is not None
        assert self._desk is not None
        self._desk.deliver(self._joined.offset.reader, instruction)

    def request(self, message: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        if self._wire.cluster.silent or self._broken:
            self._broken = False
            raise ControlSilentError("the control plane answers", "silence", "wait")
        if self._connection is None:
            self._connection, self._desk = object(), self._wire.desk
        # the same question again goes on with the one on hold, whatever is left of its time
        message = _json({**message, "timeout_s": 5.0})
        if self._pending is None or self._pending[0] != message:
            self._end_question()
            answer = self._carried_out(message)
            if not isinstance(answer, Question):
                return _json(answer)
            self._pending = message, answer, self._wire.cluster.timer() + answer.hold_s
        return self._held(*self._pending[1:])

    def _carried_out(self, message: dict[str, Any]) -> dict[str, Any] | Question:
        assert self._desk is not None
        understood = _parsed(message)
        try:
            if isinstance(understood, Hello):
                self._join(understood)
                return {"ok": True}
            return self._desk.carry_out(understood)
        except ConnectionResetError as error:  # the control plane hangs up
            self.close()
            raise ControlSilentError("the control plane answers", repr(error), "say hello again") from error
        except InvalidInputError as error:
            raise RefusedError(str(error)) from error

    def _join(self, message: Hello) -> None:
        assert self._desk is not None
        cluster, log = self._wire.cluster, open_stream(message.log)
        cluster.follow(log, message.offset)
        self._desk.join(self._connection, message, log)
        self._joined = message
        cluster.expect(message.offset.reader, self)

    def _held(self, question: Question, until_s: float) -> dict[str, Any]:
        assert self._desk is not None
        left_s = until_s - self._wire.cluster.timer()
        if question.answer is None and left_s > 0.0:
            raise Held(left_s)
        self._pending = None
        self._desk.give_up(question)
        try:
            return _json(question.to_json())
        except InvalidInputError as error:
            raise RefusedError(str(error)) from error

    def _end_question(self) -> None:
        if self._pending is not None and self._desk is not None:
            self._desk.give_up(self._pending[1])
        self._pending = None

    def lose(self) -> None:
        """The connection breaks: both sides notice."""
        self._broken = self._connection is not None
        self.close()

    def close(self) -> None:
        """Ends the connection: the control plane notices."""
        connection, desk, joined = self._connection, self._desk, self._joined
        if connection is not None and desk is not None and desk.engine is self._wire.cluster.engine:
            desk.leave(connection)
            self._end_question()
            if joined is not None:
                self._wire.cluster.expect(joined.offset.reader, None)
        self._connection = self._desk = self._joined = self._pending = None


def _parsed(message: dict[str, Any]) -> Message:
    try:
        return parsed(_json({"v": VERSION, **message}))
    except InvalidInputError as error:
        raise RefusedError(str(error)) from error


def _json(value: dict[str, Any]) -> dict[str, Any]:
    """As it crosses a socket."""
    decoded: dict[str, Any] = json.loads(json.dumps(value))
    return decoded


def _never() -> None:
    raise AssertionError("nobody stops the control plane")
