"""What the tasks of streaming queries take, and how many cores there are, as Spark's listener bus has it.

The listener is Java, so that a task's end costs microseconds: some thousands a second are usual on a cluster.
Spark's own compiler of generated code compiles it. A thread takes its lines, many at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

from pyspark.sql import SparkSession

from penstock.vocabulary.errors import UnmetError

_log = logging.getLogger(__name__)

WAIT_MS = 500
"""How long the thread waits for lines before it looks whether it is to stop."""


@dataclass(frozen=True, slots=True)
class LastStage:
    """The last stage of a job has started.

    Attributes:
        run: Id of the run of the job's query.
        batch: Number of its micro-batch.
    """

    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class JobTasks:
    """A job has ended.

    Attributes:
        run: Id of the run of the job's query.
        batch: Number of its micro-batch.
        tasks: How many tasks it had.
        core_s: Seconds of these tasks.
        ready_ago_s: How long ago the first of them could begin.
    """

    run: str
    batch: int
    tasks: int
    core_s: float
    ready_ago_s: float


@dataclass(frozen=True, slots=True)
class Cores:
    """The application's executors have so many cores now.

    Attributes:
        count: Tasks that can run at once.
    """

    count: int


TaskEvent = LastStage | JobTasks | Cores


class TaskEvents:
    """Listens to Spark, and passes on what it hears.

    Args:
        spark: The session.
        heard: Called with each event, by a thread of its own.
    """

    def __init__(self, spark: SparkSession, heard: Callable[[TaskEvent], None]) -> None:
        self._spark, self._heard = spark, heard
        self._java: Any = None
        self._is_guessing = False
        """Whether Spark does not say how many cores there are."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-task-events", daemon=True)
        try:
            self._java = _compiled(spark)
            spark.sparkContext._jsc.sc().addSparkListener(self._java)
        except Exception as error:
            _log.warning(
                "Spark does not say what tasks take, so batches run one after the other: %s",
                _first_line(error),
            )
            return
        self._thread.start()

    def running(self) -> dict[str, int]:
        """By run of a query, how many of its tasks run now."""
        if self._java is None:
            return {}
        lines = (line.split(" ") for line in self._java.running().splitlines())
        return {run: int(tasks) for run, tasks in lines}

    def stop(self) -> None:
        """Listens no more."""
        self._stop.set()
        if self._java is None:
            return
        self._thread.join(10)
        with suppress(Exception):  # Spark may have been stopped before
            self._spark.sparkContext._jsc.sc().removeSparkListener(self._java)

    def _run(self) -> None:
        known = self._tell_cores(None)
        while not self._stop.is_set():
            try:
                lines = self._java.take(WAIT_MS).splitlines()
                if self._is_guessing:
                    known = self._tell_cores(known)
            except Exception as error:  # the JVM has gone
                _log.debug("the listener's lines have come to an end: %r", error)
                return
            for line in lines:
                if line == "cores":
                    known = self._tell_cores(known)
                elif (event := parsed(line)) is not None:
                    self._tell(event)

    def _tell_cores(self, known: int | None) -> int | None:
        try:
            cores = self._cores()
        except Exception as error:  # the JVM has gone, or Spark stops
            _log.debug("nobody says how many cores there are: %r", error)
            return known
        if cores != known:
            self._tell(Cores(cores))
        return cores

    def _cores(self) -> int:
        """The cores of the executors; as many as were seen at work if Spark does not say."""
        try:
            return task_slots(self._spark)
        except Exception as error:
            if self._stop.is_set() or self._spark.sparkContext._jsc.sc().isStopped():
                raise  # a session that ends has nothing to say, and is no cluster to warn of
            seen = int(self._java.most())
            if not self._is_guessing:
                self._is_guessing = True
                _log.warning(
                    "Spark does not say how many cores its executors have: as many count as tasks have run "
                    "at once; %s",
                    _first_line(error),
                )
            return seen

    def _tell(self, event: TaskEvent) -> None:
        try:
            self._heard(event)
        except Exception as error:
            _log.debug("nobody has heard of %r: %r", event, error)


def parsed(line: str) -> TaskEvent | None:
    """The event of a line; `None` if it is none, as of another version."""
    words = line.split(" ")
    try:
        match words:
            case ["stage", run, batch]:
                return LastStage(run, int(batch))
            case ["job", run, batch, tasks, run_ms, ago_ms]:
                return JobTasks(run, int(batch), int(tasks), int(run_ms) / 1e3, int(ago_ms) / 1e3)
    except ValueError:
        pass
    return None


def task_slots(spark: SparkSession) -> int:
    """How many tasks the application's executors can run at once; in local mode the driver is an executor."""
    context = spark.sparkContext._jsc.sc()
    each = max(1, int(context.conf().get("spark.task.cpus", "1")))
    executors = context.statusStore().executorList(True)
    cores = [int(executors.apply(i).totalCores()) // each for i in range(executors.size())]
    # a driver that is no executor is listed, too, and runs no tasks
    if not any(cores) and any(executors.apply(i).id() != "driver" for i in range(executors.size())):
        raise UnmetError("Spark says how many cores an executor has", "0", "see the cluster manager")
    return sum(cores)


def _compiled(spark: SparkSession) -> Any:
    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None
    assert gateway is not None
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(resources.files(__package__).joinpath("TaskEvents.java").read_text())
    loaded = compiler.getClassLoader().loadClass("penstock.TaskEvents")
    no_types, no_values = gateway.new_array(jvm.Class, 0), gateway.new_array(jvm.Object, 0)
    return loaded.getDeclaredConstructor(no_types).newInstance(no_values)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
