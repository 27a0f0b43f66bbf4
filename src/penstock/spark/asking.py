"""A source's line to the control plane, and what it does when that is silent: go on, never at once with all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.control.client import ControlClient, ControlSilentError
from penstock.grants.offset import Offset
from penstock.grants.plan import KEEP_ALL, Plan

if TYPE_CHECKING:
    from penstock.spark.source import SourceOptions

_log = logging.getLogger(__name__)

FIRST_ROWS = 1000
"""Rows that a source gives itself when it never had a grant."""
PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Given:
    """A grant as a source gets it, or gives it to itself."""

    end: Mapping[int, int]
    late: Mapping[int, int]
    plan: Plan
    ungoverned: bool = False


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
        self._heard_s = timer()
        self._alone = False
        self._rows = FIRST_ROWS

    def ask(self, start: Offset, ends: Mapping[int, int]) -> Given | None:
        """The next grant after `start`; `None` when there is none yet."""
        message = {"op": "ask", "reader": start.reader, "start": start.to_json()}
        try:
            answer = self._request(start, message)
        except ControlSilentError as silent:
            return self._answer_alone(start, ends, silent)
        if answer.get("wait"):
            return None
        end = {int(p): position for p, position in answer["end"].items()}
        late = {int(p): position for p, position in answer["late"].items()}
        rows = sum(position - max(start.end.get(p, 0), late.get(p, 0)) for p, position in end.items())
        plan = Plan.from_json(answer["plan"])
        if rows > 0:
            self._rows = max(1, round(rows * (plan.keep_probability() if plan.unit != "key" else 1.0)))
        return Given(end, late, plan)

    def planned(self, offset: Offset, admitted: int) -> None:
        """Says that Spark plans a batch; waits for a slot if it has none (a batch run again)."""
        message = {"op": "planned", "reader": offset.reader, "offset": offset.to_json(), "admitted": admitted}
        while True:
            try:
                if self._request(offset, message)["go"]:
                    return
            except ControlSilentError:
                if self._timer() - self._heard_s >= self.options.fail_open_after_s:
                    return
                self._pause(PAUSE_S)

    def _request(self, offset: Offset, message: dict) -> dict:
        left_s = self.options.fail_open_after_s - (self._timer() - self._heard_s)
        # once alone, the question is only tried: a batch must not wait for a control plane that hangs
        timeout_s = max(0.2, left_s)
        if not self._client.connected:
            self._joined = False
        if not self._joined:
            hello = {
                "op": "hello",
                # two queries started from one governed DataFrame are two readers, each a query of its own
                "query": self.options.query if self.options.slot else offset.reader,
                "slot": self.options.slot,
                "name": self.options.query,
                "cls": self.options.cls,
                "log": self.options.stream,
                "offset": offset.to_json(),
            }
            self._client.request(hello, timeout_s)
            self._joined = True
        answer = self._client.request(message, timeout_s)
        self._heard_s = self._timer()
        if self._alone:
            _log.warning("query %s: the control plane answers again", self.options.query)
            self._alone = False
        return answer

    def _answer_alone(
        self, start: Offset, ends: Mapping[int, int], silent: ControlSilentError
    ) -> Given | None:
        from penstock.spark.source import limited

        if self._timer() - self._heard_s < self.options.fail_open_after_s:
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
        return Given(end, {}, KEEP_ALL, ungoverned=True)

    def close(self) -> None:
        self._client.close()
