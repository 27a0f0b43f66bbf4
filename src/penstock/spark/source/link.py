"""A source's line to the control plane, and what it does when that is silent: it goes on, in small steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.grants.grant import Grant
from penstock.grants.offset import Offset, limited
from penstock.grants.plans import KEEP_ALL
from penstock.host.client import ControlClient, ControlSilentError
from penstock.vocabulary.errors import InvalidInputError

if TYPE_CHECKING:
    from penstock.spark.source.data_source import SourceOptions

_log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_ROWS = 1000
"""Rows that a source gives itself at least: when it never had a grant, or only small ones."""
PAUSE_S = 0.1
BESIDE_S = 1.0
"""Silence after which a source that is governed by nobody goes on without an answer."""


class Asking:
    """Asks the control plane; after `fail_open_after_s` of silence answers itself.

    By itself it takes as many rows as its last grant had, keeps all of them, marks the offset `ungoverned`,
    and asks again each time.
    """

    def __init__(
        self,
        options: SourceOptions,
        timer: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options, self._timer, self._pause = options, timer, pause
        self._client = ControlClient(options.address)
        self._joined = False
        self._silent_since_s: float | None = None
        """When the first question was put that has no answer; not the last answer: a batch may take long."""
        self._alone = False
        self._rows = FIRST_ROWS
        self._sources = 1
        """Of its query, by its last grant: for those that it gives itself."""
        self.leads = True
        """Whether its questions open its query's grants; another reader of the query does so otherwise."""

    def ask(self, start: Offset, ends: Mapping[int, int], take_all: bool = False) -> Grant | None:
        """The next grant after `start`; `None` when there is none yet."""
        message = {"op": "ask", "reader": start.reader, "start": start.to_json(), "all": take_all}
        try:
            return self._request(start, message, self._understood)
        except ControlSilentError as silent:
            return self._answer_alone(start, ends, silent)

    def _understood(self, answer: Mapping[str, Any]) -> Grant | None:
        self.leads = answer.get("leads", True)
        if answer.get("wait"):
            return None
        grant = Grant.from_json(answer)
        self._sources = grant.sources
        return grant

    def finish(self, start: Offset) -> None:
        """Says that it wants no further grant, if somebody listens."""
        with suppress(ControlSilentError):
            self._request(start, {"op": "finish", "reader": start.reader, "start": start.to_json()}, dict)

    def planned(self, offset: Offset, admitted: int, set_aside: bool = False) -> None:
        """Says that Spark plans a batch; waits until its tasks may have the cores.

        That is when the batch before it has started its last stage, or there is a slot (a batch run again).

        Args:
            offset: Where the batch ends.
            admitted: Rows that its plan admits.
            set_aside: Whether it failed too often, and runs without them.
        """
        if not offset.ungoverned:
            self._rows = max(FIRST_ROWS, admitted)
        message = {
            "op": "planned",
            "reader": offset.reader,
            "offset": offset.to_json(),
            "admitted": admitted,
            "aside": set_aside,
        }
        while True:
            try:
                if self._request(offset, message, lambda answer: bool(answer["go"])):
                    return
            except ControlSilentError:
                if self._silent_s() >= self.options.fail_open_after_s:
                    return
                self._pause(PAUSE_S)

    def _request(
        self, offset: Offset, message: Mapping[str, Any], understood: Callable[[Mapping[str, Any]], T]
    ) -> T:
        """Asks, as one that has joined; an answer that cannot be understood is as good as none."""
        if self._silent_since_s is None:
            self._silent_since_s = self._timer()
        left_s = self.options.fail_open_after_s - self._silent_s()
        # once alone, the question is only tried: a batch must not wait for a control plane that hangs
        timeout_s = max(0.2, left_s)
        if not self._client.connected:
            self._joined = False
        if not self._joined:
            hello = {
                "op": "hello",
                # two queries started from one governed DataFrame are two readers, each a query of its own
                # and drivers that share a control plane may call different queries by one name
                "query": f"{self.options.query}@{self.options.driver}"
                if self.options.slot
                else offset.reader,
                "slot": self.options.slot,
                "token": self.options.token,
                "driver": self.options.driver,
                "name": self.options.query,
                "cls": self.options.cls,
                "log": self.options.stream,
                "offset": offset.to_json(),
            }
            self._client.request(hello, timeout_s)
            self._joined = True
        answer = self._client.request({**message, "timeout_s": timeout_s}, timeout_s)
        try:
            meant = understood(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ControlSilentError(
                "an answer is a grant", repr(error), "restart the control plane"
            ) from error
        self._silent_since_s = None
        if self._alone:
            _log.warning("query %s: the control plane answers again", self.options.query)
            self._alone = False
        return meant

    def _answer_alone(
        self, start: Offset, ends: Mapping[int, int], silent: ControlSilentError
    ) -> Grant | None:
        if self._silent_s() < self.options.fail_open_after_s:
            self._pause(PAUSE_S)
            return None
        if not self._alone:
            self._alone = True
            _log.warning(
                "query %s goes on ungoverned, %d rows a batch: %s", self.options.query, self._rows, silent
            )
        end = limited(start.end, ends, self._rows)
        if end == dict(start.end):
            self._pause(PAUSE_S)
            return None
        return Grant(end, {}, KEEP_ALL, ungoverned=True, sources=self._sources)

    def _silent_s(self) -> float:
        return 0.0 if self._silent_since_s is None else self._timer() - self._silent_since_s

    def close(self) -> None:
        self._client.close()


class Beside:
    """Asks whether its query has a grant: in that micro-batch a stream of changes is read, and in no other.

    Micro-batches of its own would take the time of others. Where nobody answers, it reads.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._query, self._client = options.beside, ControlClient(options.address, BESIDE_S)

    def granted(self) -> bool:
        try:
            return bool(self._client.request({"op": "granted", "query": self._query})["granted"])
        except (ControlSilentError, InvalidInputError):  # the latter of a control plane that is older
            return True

    def close(self) -> None:
        self._client.close()
