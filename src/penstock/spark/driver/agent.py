"""The driver's side of the control plane: its process, and facts of queries that only the driver can see."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.streaming import StreamingQuery

from penstock.config.flow import FlowConfig
from penstock.control.decide.observing import ClassPlant
from penstock.control.state.classes import govern
from penstock.host.client import PREFIX, ControlClient, ControlSilentError
from penstock.record.rundir import check_new
from penstock.spark.driver.catalyst import closes_windows, interval_trigger, sources_of
from penstock.spark.driver.task_events import Cores, JobTasks, LastStage, TaskEvent, TaskEvents
from penstock.spark.driver.watermark_losses import Dropped, ProgressListener
from penstock.spark.source.options import FORMAT_NAME
from penstock.vocabulary.errors import PenstockError, UnmetError

if TYPE_CHECKING:
    from penstock.spark.driver.flow import Flow

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""A control plane that starts this slowly is stuck; on a busy machine it takes a few seconds."""
SILENT_S, PING_TIMEOUT_S, LEAST_PINGS = 10.0, 1.0, 5
"""A control plane that lives is replaced after `SILENT_S` without an answer to `LEAST_PINGS` pings."""
LOOK_EVERY_S = 0.5
TELL_TIMEOUT_S, REPORT_TIMEOUT_S = 0.2, 1.0
"""How long a listener waits for the control plane's answer: to a Spark event, and to a report on a
micro-batch. Reports may wait longer, because they have a queue of their own and are sent once."""
LAST_REPORTS_MS = 2000
"""How long `close` waits for Spark's reports on the last micro-batches, which come from a queue."""


def tokens_of(query: StreamingQuery) -> set[str]:
    """Tokens of a query's governed sources."""
    return {source.token for source in sources_of(query)}


def _readers_of(query: StreamingQuery) -> list[str]:
    """Readers of a query, from the offsets of its last batch; none before the first batch."""
    offsets = query._jsq.streamingQuery().availableOffsets().values().toSeq()
    found = [json.loads(offsets.apply(i).json()) for i in range(offsets.size())]
    return [offset["reader"] for offset in found if isinstance(offset, dict) and FORMAT_NAME in offset]


class Agent:
    """A thread in the driver: watches triggers and windows of queries, and replaces a dead control plane."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._known: set[str] = set()
        self._tokens: dict[str, list[str]] = {}
        """Tokens of each governed query, by its run."""
        self._is_up_to_date = True
        """Whether the control plane has the changes that were made since the start."""
        # the two listeners are called by two threads, and this agent is a third: each has a line of its own
        self._line = ControlClient(flow.address, TELL_TIMEOUT_S)
        self._other_line = ControlClient(flow.address, REPORT_TIMEOUT_S)
        self._own_line = ControlClient(flow.address, TELL_TIMEOUT_S)
        self._cores: int | None = None
        """Of the application's executors, as Spark last said."""
        self._tasks = TaskEvents(flow.spark, self._heard)
        self._listeners = (self._tasks, ProgressListener(flow.spark, self._ended))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-agent", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops watching queries; Spark's reports are still passed on."""
        self._stop.set()
        self._thread.join(10)

    def close(self) -> None:
        """Stops listening, after the reports on the last micro-batches have come."""
        if (context := self._flow.spark.sparkContext._jsc) is not None:  # else Spark was stopped before
            with suppress(Py4JError):  # the time is up, because another listener is slow
                context.sc().listenerBus().waitUntilEmpty(LAST_REPORTS_MS)
        for listener in self._listeners:
            listener.stop()
        for line in (self._line, self._other_line, self._own_line):
            line.close()

    def _heard(self, event: TaskEvent) -> None:
        """Passes on what Spark says of cores and tasks; a control plane that is silent misses it."""
        match event:
            case Cores():
                self._cores = event.count
                self._tell_cores(self._line)
                return
            case LastStage():
                message: dict[str, Any] = {"op": "last_stage"}
            case JobTasks():
                message = {
                    "op": "job",
                    "tasks": event.tasks,
                    "core_s": event.core_s,
                    "ready_ago_s": event.ready_ago_s,
                }
        if tokens := self._tokens.get(event.run):
            with suppress(PenstockError):
                self._line.request({**message, "tokens": tokens, "batch": event.batch})

    def _tell_cores(self, line: ControlClient) -> None:
        """Tells the control plane how many cores there are, on the line of the thread that calls this."""
        if self._cores is not None:
            with suppress(PenstockError):
                line.request({"op": "cores", "driver": self._flow.driver, "cores": self._cores})

    def _tell_tasks(self) -> None:
        """Tells the control plane how many tasks each query has on cores: some take longer than expected."""
        if self._cores is None:
            return
        running = [
            {"tokens": tokens, "tasks": tasks}
            for run, tasks in self._tasks.running().items()
            if (tokens := self._tokens.get(run))
        ]
        with suppress(PenstockError):
            self._own_line.request({"op": "tasks", "driver": self._flow.driver, "running": running})

    def _ended(self, batch: int, rows: Dropped) -> None:
        """Tells the control plane which grants a batch had, and how many rows of each were dropped."""
        counts = [[reader, grant, count] for (reader, grant), count in rows.items()]
        with suppress(PenstockError):
            self._other_line.request({"op": "dropped", "batch": batch, "rows": counts})

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                if self._flow.control is not None and self._flow.control.revive():
                    self._known.clear()
                    self._is_up_to_date = False
                if not self._is_up_to_date:  # tried again if a message only finds that the old line is dead
                    self._flow.resend_changes()
                    self._is_up_to_date = True
                self._check_queries()
                self._tell_cores(self._own_line)  # so that a control plane that was replaced knows
                self._tell_tasks()
            except PenstockError as error:
                _log.warning("the control plane could not be reached: %s", error)
            except Exception as error:  # Spark may be stopping; the next look will show
                _log.debug("the agent's look failed: %r", error)

    def _check_queries(self) -> None:
        """Refuses queries that cannot be governed, and tells the control plane which ones close windows."""
        active = list(self._flow.spark.streams.active)
        for ended_run in self._tokens.keys() - {query.runId for query in active}:
            del self._tokens[ended_run]
        for query in active:
            if query.runId in self._known:
                continue
            tokens = self._flow.tokens & tokens_of(query)
            if tokens:
                self._tokens[query.runId] = sorted(tokens)
            if tokens and closes_windows(query):
                self._flow.request({"op": "windows", "tokens": sorted(tokens)})
            refusal = _refusal(query)
            if refusal is None or self._forbid(query, active, refusal):
                self._known.add(query.runId)

    def _forbid(self, query: StreamingQuery, active: list[StreamingQuery], refusal: dict[str, str]) -> bool:
        """Lets the query's next question fail; returns False if the query's readers are not known yet."""
        tokens = self._flow.tokens & tokens_of(query)
        shared = [other for other in active if other.runId != query.runId and tokens & tokens_of(other)]
        kind, names = ("reader", _readers_of(query)) if shared else ("token", sorted(tokens))
        for name in names[:1]:  # one source that fails ends the query
            self._flow.request({"op": "forbid", kind: name, **refusal})
        return bool(names) or not tokens


def _refusal(query: StreamingQuery) -> dict[str, str] | None:
    if (trigger := interval_trigger(query)) is not None:
        return {  # with another trigger, the query would miss its turns
            "rule": "a governed query has the default trigger",
            "got": trigger,
            "hint": "leave out .trigger(...): Penstock decides when a micro-batch runs",
        }
    sources = [source for source in sources_of(query) if source.governed]
    slots = {(source.query, source.slot) for source in sources if source.slot}
    of_one = len({name for name, _ in slots}) == 1 and len(slots) == len(sources)
    if len(sources) > 1 and not of_one:
        return {  # each source would wait for the other's turn inside one micro-batch
            "rule": "a query with several governed sources takes its readers from one flow.query",
            "got": " and ".join(sorted(Path(source.stream).name for source in sources)),
            "hint": "readers = flow.query(name, cls=...); readers.read_stream(...) for each",
        }
    return None


def _check(config: FlowConfig) -> None:
    """Refuses what the process would refuse, because the process's own message is lost among Spark's."""
    for name, cls in config.classes.items():
        govern(name, cls, ClassPlant(cls.query_class(name), 0.0), None, config.dry_run, config.seed)
    if config.run is not None:
        check_new(config.run)


class ControlProcess:
    """A control plane as a child process, which ends when its standard input is closed."""

    def __init__(self, config: FlowConfig) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-")
        self.address = f"{PREFIX}{self._folder.name}/control"
        self._start = {
            "address": self.address,
            "config": config.to_json(),
            "memory": f"{self._folder.name}/costs.json",
            "run": None if config.run is None else str(config.run),
            "record": {"kind": "spark", "flow": json.loads(config.to_json())},
        }
        self._spawned = 0
        self._pings = ControlClient(self.address, PING_TIMEOUT_S)
        self._silent_since_s: float | None = None
        self._unanswered = 0
        _check(config)
        self._process = self._spawn()

    def _message(self) -> dict[str, Any]:
        """The first message to a process; a process that replaces another has its own run directory."""
        self._spawned += 1
        run = self._start["run"]
        return (
            self._start
            if run is None or self._spawned == 1
            else {**self._start, "run": f"{run}-{self._spawned}"}
        )

    def revive(self) -> bool:
        """Starts another process if this one is dead or does not answer; returns whether it started one."""
        if self._process.poll() is not None:
            _log.warning("the control plane ended with %s; starting another", self._process.returncode)
        elif self._is_stuck():
            _log.warning("the control plane has not answered for %g s; starting another", SILENT_S)
            self._process.kill()
            self._process.wait()
        else:
            return False
        self._pings.close()
        self._silent_since_s, self._unanswered = None, 0
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = self._spawn()
        return True

    def _is_stuck(self) -> bool:
        """Whether the process lives but does not answer. Queries would go on ungoverned for ever."""
        asked_s = time.monotonic()
        try:
            self._pings.request({"op": "ping"})
        except ControlSilentError:
            self._unanswered += 1
            self._silent_since_s = asked_s if self._silent_since_s is None else self._silent_since_s
            # the driver itself may have been suspended, so silence counts only after several pings
            silent_s = time.monotonic() - self._silent_since_s
            return silent_s >= SILENT_S and self._unanswered >= LEAST_PINGS
        self._silent_since_s, self._unanswered = None, 0
        return False

    @property
    def pid(self) -> int:
        return self._process.pid

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.host.process"],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # the driver alone handles a Ctrl-C in the terminal
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._message()).encode() + b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + START_TIMEOUT_S
        client = ControlClient(self.address)
        while True:
            try:
                client.request({"op": "status"})
                client.close()
                return process
            except ControlSilentError:
                if process.poll() is not None or time.monotonic() > deadline:
                    code = process.poll()
                    process.kill()  # a process that comes up later would serve nobody
                    raise UnmetError(
                        "the control plane starts",
                        f"no answer within {START_TIMEOUT_S:g} s" if code is None else f"exit code {code}",
                        "see what its process printed above",
                    ) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Ends the process and waits until its run directory is closed."""
        self._pings.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
