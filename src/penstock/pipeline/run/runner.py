"""`penstock run`: a pipeline from its configuration to its closing report.

The run directory holds, beside the control plane's record (see `penstock.record.rundir`):

    pipeline.json        the pipeline as it ran
    measurements.jsonl   a line a second: status of every class, progress of the producers; in numbered parts
    checkpoints/         checkpoints of queries that name none
    errors/<query>.txt   Spark's whole message about a query that failed
    summary.json         the result of `run_pipeline`
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.host.client import ControlSilentError
from penstock.pipeline.feed.child import ProducerProcess
from penstock.pipeline.run.build import Built, build_queries, load_functions, prepare_streams, start_query
from penstock.pipeline.run.materialise import materialise_views
from penstock.pipeline.run.passing import PassingReaders, forget_killed_runs
from penstock.pipeline.run.statistics import Selectivity, family_costs, sampled_fractions
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.record.layout import REPORT, dump_json
from penstock.record.parts import Parts, dropped
from penstock.record.rundir import check_new
from penstock.show.report import class_report, own_status, query_report
from penstock.spark.beside import importable
from penstock.spark.driver.flow import Flow
from penstock.spark.driver.starting import not_ready, start_in_turn, too_late, was_late
from penstock.spark.session import pipeline_session
from penstock.vocabulary.errors import UnmetError
from penstock.vocabulary.status import Status

STATUS_EVERY_S = 1.0
MEASUREMENTS = "measurements.jsonl"
PLAN_AFTER_S = 30.0
"""The plan is noted after this time, or after the longest target if that is shorter: rates are known then."""
READY_TIMEOUT_S = 180.0
"""Timeout for the first batches of all queries; the very first batch includes Spark's warm-up."""

OnStatus = Callable[[Status, float], None]
"""Called with `flow.status()` and the seconds since the producers began."""


def run_pipeline(
    config: PipelineConfig,
    seconds: float | None = None,
    dry_run: bool = False,
    run: Path | None = None,
    on_status: OnStatus | None = None,
    on_note: Callable[[str], None] | None = None,
    *,
    base: Path | None = None,
    drain_s: float = 0.0,
    spark: SparkSession | None = None,
    on_ready: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Runs a pipeline until the time is up or a SIGINT or SIGTERM; returns the closing report.

    A query that fails is reported; the other queries go on.

    Args:
        config: Result of `load_pipeline`.
        seconds: How long rows are produced; `None` until somebody stops the run.
        dry_run: Decides and logs, but sheds nothing.
        run: A new directory for the record; by default the configuration's, or `runs/pipeline-<time>`.
        on_status: Called once a second.
        on_note: Called with lines for people: guarantees at the start, failures.
        base: Directory with modules of `function:` queries, searched after Python's own places.
        drain_s: How long to process rows that still wait at the end, without shedding.
        spark: A session to use and leave running; by default a new session.
        on_ready: Called once the queries ask for rows and the producers have started.

    Raises:
        PenstockError: The pipeline cannot be started; no part of it runs.
    """
    directory = new_run_directory(run or config.run or Path("runs") / timestamped("pipeline"))
    config = config.model_copy(update={"run": directory, "dry_run": config.dry_run or dry_run})
    note = on_note or (lambda _: None)
    config, settled = materialise_views(config, directory)
    for line in settled:
        note(line)
    with ExitStack() as stack:
        stack.enter_context(importable(base))
        functions = load_functions(config)
        prepare_streams(config)
        producers = ProducerProcess(config)  # before Spark: an unreadable trace is refused at once
        stack.callback(producers.stop)
        if spark is None:
            # Spark's message about a failed query would fill the terminal; it goes to the run directory
            spark = pipeline_session(config.spark, "penstock run", log_level="FATAL")
            stack.callback(spark.stop)
        stop = stack.enter_context(_stopped_by_signals())
        running = _Running(config, directory, spark, producers, on_status, note)
        stack.callback(running.close)
        running.start(functions)
        if on_ready is not None:
            on_ready()
        running.watch(seconds, stop)
        return running.finish(drain_s)


def new_run_directory(path: Path) -> Path:
    """The absolute path of a new or empty directory; others are refused, as runs are never overwritten."""
    path = path.absolute()
    check_new(path)
    return path


def timestamped(name: str) -> str:
    """A name for a run that begins now."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


class _Running:
    """A run in progress, and its parts."""

    def __init__(
        self,
        config: PipelineConfig,
        directory: Path,
        spark: SparkSession,
        producers: ProducerProcess,
        on_status: OnStatus | None,
        note: Callable[[str], None],
    ) -> None:
        self.config, self.directory, self.spark, self.producers = config, directory, spark, producers
        self._on_status, self._note = on_status, note
        self._passing = PassingReaders(config, directory)
        self.flow: Flow | None = None
        self.built: list[Built] = []
        self.queries: dict[str, StreamingQuery] = {}
        self.failed: dict[str, str] = {}
        self._began_s = self._ran_s = 0.0
        self._measurements = Parts([directory / MEASUREMENTS], config.record_bytes)
        self._status: Status | None = None
        self._plan: dict[str, Any] | None = None
        self._plan_said = False
        self._selectivity: dict[str, Selectivity] = {}
        self._looks = 0
        self._noted: set[str] = set()
        self._ended: set[str] = set()
        """Files of the record that could not be written."""

    # -- starting -------------------------------------------------------------------------------

    def start(self, functions: dict[str, Any]) -> None:
        """Starts the control plane, the queries and, once the queries ask for rows, the producers."""
        self.flow = Flow(self.spark, self.config.flow_config())
        self.directory.mkdir(parents=True, exist_ok=True)  # exists, unless the control plane is shared
        (self.directory / "pipeline.json").write_text(_pretty(self.config) + "\n")
        shared = "" if self.flow.control is not None else ", shared: it has the record of decisions"
        self._note(f"control plane: {self.flow.address}{shared}")
        for built in build_queries(self.flow, self.config, functions, self.directory):
            self.built.append(built)
        forget_killed_runs(self.config)
        self._passing.begin()
        for built in self.built:
            query = self.config.queries[built.name]
            self._note(f"{built.name}: class {query.cls}, {query.sink.kind} sink, {built.guarantee}")
        new = {built.name for built in self.built if not (Path(built.checkpoint) / "commits").exists()}
        for built in self.built:
            start = partial(start_query, self.spark, self.config, built)
            self.queries[built.name] = start_in_turn(start, self._note)
            self._selectivity[built.name] = Selectivity()
        self._await_readiness(new)
        self.producers.begin()
        self._began_s = time.monotonic()

    def _await_readiness(self, new: set[str]) -> None:
        """Waits until every query has done its first batch and asks for rows.

        A new query begins with an empty batch, in which Spark compiles its plan: no row should wait for these
        seconds. And a query that starts at the log's end would miss rows that came before its first look.
        """
        assert self.flow is not None
        wanted = {name: len(self.config.governed_streams_of(name)) for name in self.queries}
        began_s, late = time.monotonic(), sorted(wanted)
        while time.monotonic() - began_s < READY_TIMEOUT_S:
            self._look_for_failures()
            left = {name: count for name, count in wanted.items() if name not in self.failed}
            late = not_ready(self._own_status(), left, new)
            if not late:
                self._note(f"ready after {time.monotonic() - began_s:.1f} s")
                return
            time.sleep(0.05)
        raise UnmetError(
            f"every query asks for rows within {READY_TIMEOUT_S:g} s",
            f"no question of {', '.join(late)}",
            "try the query alone, or in a plain Spark session",
        )

    def _own_status(self) -> Status:
        assert self.flow is not None
        return own_status(self.flow.status(), self.flow.driver, self.config.classes)

    # -- watching -------------------------------------------------------------------------------

    def watch(self, seconds: float | None, stop: threading.Event) -> None:
        """Measures once a second, until the time is up, a signal comes, or every query has failed."""
        due_s = self._began_s
        while not stop.is_set() and len(self.failed) < len(self.queries):
            due_s += STATUS_EVERY_S
            end_s = due_s if seconds is None else min(due_s, self._began_s + seconds)
            stop.wait(max(0.0, end_s - time.monotonic()))
            self._measure()
            if seconds is not None and time.monotonic() >= self._began_s + seconds:
                return

    def _measure(self) -> None:
        assert self.flow is not None
        self._look_for_failures()
        self._look_for_changes()
        self._look_at_results()
        for name, error in self.producers.errors.items():
            self._note_once(f"stream {name}: {error}" if name in self.config.streams else error)
        for name, warning in self.producers.warnings.items():
            self._note_once(f"stream {name}: {warning}")
        try:
            status = self._own_status()
        except ControlSilentError as silent:
            self._note_once(f"{silent}; sources go on by themselves")
            return
        before, self._status = self._status, status
        if before is not None:
            status = replace(status, marked=before.classes)
        at_s = time.monotonic() - self._began_s
        line = dump_json({"at_s": at_s, **status.to_json(), "streams": self.producers.progress}) + "\n"
        self._try_to_record(MEASUREMENTS, lambda: self._measurements.add(line))
        if self._on_status is not None:
            self._on_status(status, at_s)
        with suppress(ControlSilentError):
            self._note_plan()

    def _note_plan(self) -> None:
        """Notes, once costs and rates are known, what each class needs and which targets cannot be met."""
        assert self.flow is not None
        settled_s = min(max(cls.target_s for cls in self.config.classes.values()), PLAN_AFTER_S)
        if self._plan_said or time.monotonic() - self._began_s < settled_s:
            return
        plan = self.flow.plan()
        if any(set(cls["not_measured"]) & set(self.queries) for cls in plan["classes"].values()):
            return
        self._plan_said = True
        for name in self.config.classes:  # a shared control plane may have other classes
            for sentence in plan["classes"][name]["says"]:
                self._note(f"plan: {name}: {sentence}")

    def _look_for_failures(self) -> None:
        for name, query in self.queries.items():
            if name in self.failed or query.isActive:
                continue
            error = query.exception()
            text = "it was stopped" if error is None else str(error)
            late = was_late(query)
            self.failed[name] = text if error is None else too_late(name) if late else failure(text)
            self._record(f"errors/{name}.txt", text + "\n")
            self._note(f"query {name} failed: {self.failed[name]}")

    def _look_for_changes(self) -> None:
        for built in self.built:
            if built.live is not None and (text := built.live.look()) is not None:
                self._note(text)

    def _look_at_results(self) -> None:
        """Looks at one query each time, in turn: a look takes milliseconds, and there may be many queries."""
        names = list(self.queries)
        name = names[self._looks % len(names)]
        self._looks += 1
        if name not in self.failed:
            self._selectivity[name].look(self.queries[name])

    def _record(self, file: str, text: str) -> None:
        """Adds to a file of the record."""

        def add() -> None:
            path = self.directory / file
            path.parent.mkdir(exist_ok=True)
            with path.open("a") as to:
                to.write(text)

        self._try_to_record(file, add)

    def _try_to_record(self, file: str, write: Callable[[], None]) -> None:
        """Writes to the record; if that fails, as on a full disk, the file ends and the queries go on."""
        if file in self._ended:
            return
        try:
            write()
        except OSError as error:
            self._ended.add(file)
            self._note(f"{file} of the record ends here, the queries go on: {error}")

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)

    # -- finishing ------------------------------------------------------------------------------

    def finish(self, drain_s: float) -> dict[str, Any]:
        """Stops the producers, drains if asked to, stops the queries through the gate, and reports."""
        assert self.flow is not None
        self._ran_s = time.monotonic() - self._began_s
        with suppress(ControlSilentError):
            self._plan = self.flow.plan()  # while rows come: without rows, no class needs time
        self.producers.stop()
        drained = self.flow.drain(drain_s) if drain_s > 0 else None
        self._look_for_failures()
        for name, query in self.queries.items():
            if name not in self.failed:  # a short run may end before each query was looked at
                self._selectivity[name].look_back(query)
        with suppress(ControlSilentError):
            self._status = self._own_status()
        self.flow.stop()
        summary = self._summary(drained)
        self._record("summary.json", dump_json(summary, indent=2) + "\n")
        plain: dict[str, Any] = json.loads(dump_json(summary))
        return plain

    def _summary(self, drained: bool | None) -> dict[str, Any]:
        with suppress(FileNotFoundError):  # a shared or killed control plane wrote no report here
            self._status = Status.from_json(json.loads((self.directory / REPORT).read_text()))
        status = self._status or Status.from_json({"classes": {}})
        queries = query_report(status)
        for built in self.built:
            queries.setdefault(built.name, {"class": self.config.queries[built.name].cls})
            queries[built.name] |= self._statistics(built, queries[built.name])
            queries[built.name] |= {
                "sink": self.config.queries[built.name].sink.kind,
                "guarantee": built.guarantee,
                "error": self.failed.get(built.name),
            }
        errors = {**{f"query {name}": e for name, e in self.failed.items()}, **self.producers.errors}
        return {
            "kind": "pipeline",
            "run": str(self.directory),
            "seconds": self._ran_s,
            "dry_run": self.config.dry_run,
            "drained": drained,
            "ok": not errors,
            "errors": errors,
            "classes": class_report(status),
            "queries": queries,
            "streams": self.producers.progress,
            "plan": self._plan,
            "dropped": dropped(self.directory),
        }

    def _statistics(self, built: Built, report: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"selectivity": self._selectivity[built.name].fraction}
        family = self.config.family_of(built.name) if built.live is None else built.live.family
        if family is not None:
            fractions = sampled_fractions(self.config, family)
            found["family"] = family_costs(family, fractions, report.get("fixed_s"), report.get("row_s"))
        return found

    def close(self) -> None:
        """Ends all that still runs; after `finish`, releases sinks' locks and forgets this run's readers."""
        self.producers.stop()
        if self.flow is not None:
            self.flow.stop()
        try:
            self._passing.end()
        except Exception as error:  # files of a lane may be damaged; sinks are closed all the same
            why = f"{type(error).__name__}: {error}"
            self._note(f"readers of this run are not forgotten, the next run tries again: {why}")
        for sink in [built.sink for built in self.built if built.sink is not None]:
            sink.close()


def failure(text: str) -> str:
    """The root exception in Spark's message about a failed query, without the plan."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _is_exception(line)]
    return (raised[-1] if raised else lines[0] if lines else "nothing")[:300]


def _is_exception(line: str) -> bool:
    head, colon, _ = line.partition(": ")
    return bool(colon) and head.replace(".", "").isidentifier() and head.endswith(("Error", "Exception"))


def _pretty(config: PipelineConfig) -> str:
    return json.dumps(json.loads(config.to_json()), indent=2)


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second signal has its usual effect."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
