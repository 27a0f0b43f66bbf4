"""Reports when a micro-batch has started its last stage.

From then on the micro-batch waits for no core, so the next batch may start beside it. Spark does not
interrupt tasks: if the next batch starts earlier, the last stage waits until all tasks of the next batch are
done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

JOB_GROUP, BATCH = "spark.jobGroup.id", "streaming.sql.batchId"
"""Properties of a streaming query's jobs: the id of the query's run, and the number of the micro-batch."""


class StageListener:
    """Listens to Spark's own events: some thirty a micro-batch, a few milliseconds in all.

    Args:
        spark: The session.
        started: Called with the run of a query and the micro-batch when a job has started its last stage.
    """

    class Java:
        implements = ("org.apache.spark.scheduler.SparkListenerInterface",)

    def __init__(self, spark: SparkSession, started: Callable[[str, int | None], None]) -> None:
        self._started = started
        self._last: dict[int, tuple[int, str, int | None]] = {}
        """Job, run and micro-batch, by the last stage of the job."""
        context = spark.sparkContext
        assert context._jvm is not None
        ensure_callback_server_started(context._gateway)
        held = context._jvm.java.util.ArrayList()
        held.add(self)
        # Spark removes only the very object that was added, and each call would wrap `self` in another one
        self._as_java = held.get(0)
        self._spark = context._jsc.sc()
        self._spark.addSparkListener(self._as_java)

    def stop(self) -> None:
        self._spark.removeSparkListener(self._as_java)

    def onJobStart(self, event: Any) -> None:  # noqa: N802 - Spark's name
        run = event.properties().getProperty(JOB_GROUP)
        stages = event.stageIds()
        if run is not None and stages.size():
            last = max(stages.apply(i) for i in range(stages.size()))
            batch = event.properties().getProperty(BATCH)
            self._last[last] = event.jobId(), run, None if batch is None else int(batch)

    def onStageSubmitted(self, event: Any) -> None:  # noqa: N802
        _, run, batch = self._last.pop(event.stageInfo().stageId(), (0, None, None))
        if run is not None:
            self._started(run, batch)

    def onJobEnd(self, event: Any) -> None:  # noqa: N802
        """Forgets a job that never reached its last stage."""
        job = event.jobId()
        for stage in [stage for stage, (of, _, _) in self._last.items() if of == job]:
            del self._last[stage]

    def equals(self, other: Any) -> bool:
        """Always False: Java asks only about other objects."""
        return False

    def hashCode(self) -> int:  # noqa: N802
        return id(self) & 0x7FFFFFFF

    def toString(self) -> str:  # noqa: N802
        return "penstock's listener"

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        """Ignores events of all other kinds."""
        if not name.startswith("on"):
            raise AttributeError(name)
        return _ignore


def _ignore(event: Any) -> None:
    """Does nothing."""
