"""The governed source: a Python data source whose every offset is a grant of the control plane.

`latestOffset`, `partitions` and `commit` run in a planner process on the driver's host, one for each source;
`read` runs on the executors. The source decides nothing: it asks, journals the answer, and carries it out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.grants.offset import Offset
from penstock.spark.daemon import hush
from penstock.spark.source.metadata import spark_schema
from penstock.spark.source.options import FORMAT_NAME, SourceOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.tasks import ReadTask, read_task
from penstock.streams.opening import open_stream
from penstock.vocabulary.errors import InvalidInputError

hush(sys.modules["__main__"])

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
ORPHANED_S = 1.0
"""How often a planner checks whether its driver lives."""


class PenstockSource(DataSource):
    """`spark.readStream.format("penstock")`; made by `flow.read_stream`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def _options(self) -> SourceOptions:
        return SourceOptions.from_option(self.options["penstock"])

    def schema(self) -> StructType:
        options = self._options()
        return spark_schema(open_stream(options.stream).user_schema, options.metadata)

    def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802 - Spark's name
        if _is_planner():
            sys.excepthook = _quiet_end  # this process belongs to this source alone
            threading.Thread(target=_end_with_driver, args=(os.getppid(),), daemon=True).start()
        return PenstockStreamReader(self._options())


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks for a grant before every micro-batch, and reads the rows of the grant."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._planner: Planner | None = None

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._plan().initial().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().stop_at_present_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(sys.maxsize)  # differs from the limit of Trigger.Once, ReadAllAvailable

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self.options.address and isinstance(limit, ReadAllAvailable):
            raise InvalidInputError(  # Trigger.Once asks once: out of turn, it would end with nothing done
                "a governed query has the default trigger", "Trigger.Once", "use .trigger(availableNow=True)"
            )
        offset = self._plan().next(Offset.from_json(start))
        return start if offset is None else offset.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._plan().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # the end alone says what is read; the start may be missing, or belong to an earlier source
        before = Offset.from_json(start) if FORMAT_NAME in start else None
        return self._plan().tasks(Offset.from_json(end), before)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return read_task(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._plan().progress(Offset.from_json(end))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


def _is_planner() -> bool:
    """Whether Spark has started this process to plan one source."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == PLANNER


def _end_with_driver(driver: int) -> None:
    """Ends a planner whose driver was killed: it would still own the journal that the next planner needs."""
    while os.getppid() == driver:
        time.sleep(ORPHANED_S)
    os._exit(1)


def _quiet_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints no traceback when a stopped query resets the socket of its planner; an `excepthook`."""
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
