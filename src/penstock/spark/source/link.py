"""A source's link to the control plane. If the control plane is silent, the source goes on in small steps."""

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
    from penstock.spark.source.options import SourceOptions

_log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_ROWS = 1000
"""Least rows that a source grants to itself, if it never had a grant or only small ones."""
PAUSE_S = 0.1
BESIDE_S = 1.0
"""Silence after which an ungoverned source, which reads beside a governed one, goes on without an answer."""


class ControlLink:
    """Asks the control plane for grants; after `fail_open_after_s` of silence, makes grants itself.

    Such a grant has as many rows as the last governed batch admitted, keeps all of them, and marks the offset
    `ungoverned`. The link asks the control plane again before each one.
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
        """Time of the first unanswered question. Not of the last answer, because a batch may take long."""
        self._alone = False
        self._rows = FIRST_ROWS
        self._sources = 1
        """Number of the query's readers, by the last grant; grants that the link makes itself have it too."""
        self.leads = True
        """Whether this reader's questions open its query's grants; else another reader's questions do."""

    def ask(self, start: Offset, ends: Mapping[int, int], take_all: bool = False) -> Grant | None:
        """The next grant after `start`; `None` if there is none yet."""
        message = {"op": "ask", "reader": start.reader, "start": start.to_json(), "all": take_all}
        try:
            return self._request(start, message, self._parse_grant)
        except ControlSilentError as silent:
            return self._answer_alone(start, ends, silent)

    def _parse_grant(self, answer: Mapping[str, Any]) -> Grant | None:
        self.leads = answer.get("leads", True)
        if answer.get("wait"):
            return None
        grant = Grant.from_json(answer)
        self._sources = grant.sources
        return grant

    def finish(self, start: Offset) -> None:
        """Tells the control plane that this reader wants no further grant; silence is ignored."""
        with suppress(ControlSilentError):
            self._request(start, {"op": "finish", "reader": start.reader, "start": start.to_json()}, dict)

    def planned(self, offset: Offset, admitted: int, set_aside: bool = False) -> int | None:
        """Tells the control plane that Spark plans a batch; waits until the batch's tasks may have the cores.

        They may once the batch before has started its last stage. A batch that is run again waits for a slot.

        Args:
            offset: Offset at which the batch ends.
            admitted: Number of rows that the batch's plan admits.
            set_aside: Whether the batch failed too often, and runs without these rows.

        Returns:
            Into how many tasks the rows are worth dividing; `None` if the control plane does not know.
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
                goes, tasks = self._request(offset, message, _parse_planned)
                if goes:
                    return tasks
            except ControlSilentError:
                if self._silent_s() >= self.options.fail_open_after_s:
                    return None
                self._pause(PAUSE_S)

    def _request(
        self, offset: Offset, message: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], T]
    ) -> T:
        """Sends a message, after joining if necessary; an answer that cannot be parsed counts as silence."""
        if self._silent_since_s is None:
            self._silent_since_s = self._timer()
        left_s = self.options.fail_open_after_s - self._silent_s()
        # when the time is up, the timeout is short: a batch must not wait for a control plane that hangs
        timeout_s = max(0.2, left_s)
        if not self._client.connected:
            self._joined = False
        if not self._joined:
            hello = {
                "op": "hello",
                # Two queries started from one governed DataFrame are two readers, each a query of its own.
                # Drivers that share a control plane may use one name for different queries.
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
            parsed = parse(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ControlSilentError(
                "an answer is a grant", repr(error), "restart the control plane"
            ) from error
        self._silent_since_s = None
        if self._alone:
            _log.warning("query %s: the control plane answers again", self.options.query)
            self._alone = False
        return parsed

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


def _parse_planned(answer: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Whether a batch may take cores, and its tasks, which an older control plane does not tell."""
    tasks = answer.get("tasks")
    return bool(answer["go"]), None if tasks is None else max(1, int(tasks))


class Beside:
    """Asks whether the query has a grant: a stream of changes is read only in micro-batches with a grant.

    Micro-batches for changes alone would take time from other queries. If nobody answers, changes are read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._query, self._client = options.beside, ControlClient(options.address, BESIDE_S)

    def granted(self) -> bool:
        try:
            return bool(self._client.request({"op": "granted", "query": self._query})["granted"])
        except (ControlSilentError, InvalidInputError):  # an older control plane refuses the question
            return True

    def close(self) -> None:
        self._client.close()
