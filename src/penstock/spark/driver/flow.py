"""`penstock.attach`: a Spark application's governed streams, and the control plane that governs them."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from penstock.config.flow import FlowConfig, load_flow_config
from penstock.config.old_shedding import both_changes
from penstock.control.state.sharing import RUNNING
from penstock.host.client import ControlClient, ControlSilentError
from penstock.spark.driver.agent import Agent, ControlProcess, tokens_of
from penstock.spark.driver.catalyst import check_version, sources_of
from penstock.spark.driver.places import check_in_log, place_of
from penstock.spark.driver.shared import check_shared
from penstock.spark.driver.starting import await_question, start_in_turn, too_late, was_late
from penstock.spark.idle import register_source
from penstock.spark.session import adopt_session
from penstock.spark.sink import LogStreamSink, log_sink
from penstock.spark.source.data_source import PenstockSource
from penstock.spark.source.metadata import metadata_columns
from penstock.spark.source.options import FORMAT_NAME, SourceOptions
from penstock.streams.layout import Fsync, LogConfig
from penstock.streams.protocol import ORIGIN
from penstock.streams.starting import Starting, check_starting
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError
from penstock.vocabulary.names import is_file_name
from penstock.vocabulary.status import ClassStatus, Status

_log = logging.getLogger(__name__)

MOST_LETTERS = 64
STARTING_S = 15.0
"""`stop` waits this long for a query that was just started to ask for rows, or for Spark to give up on it. If
a query is stopped before its source's Python process has connected, that process prints a traceback."""
LEAVING_S = 10.0
"""`remove_class` waits this long for sources of stopped queries to leave."""


def attach(spark: SparkSession, config: str | Path | Mapping[str, Any] | FlowConfig) -> Flow:
    """Governs streaming queries of a Spark application.

    Args:
        spark: A session of `penstock.session`, or your own.
        config: A YAML file, a mapping with the same content, or a `FlowConfig`.

    Returns:
        The flow: `flow.read_stream(name, cls=...)` gives governed streaming DataFrames. Use it in a `with`,
        or call `flow.stop()`.
    """
    return Flow(spark, load_flow_config(config))


class Flow:
    """The governed streams of one Spark application."""

    def __init__(self, spark: SparkSession, config: FlowConfig) -> None:
        adopt_session(spark)
        check_version(spark.version)
        self.spark, self.config = spark, config
        register_source(spark, PenstockSource)
        self._names: set[str] = set()
        self.tokens: set[str] = set()
        self.control: ControlProcess | None = None
        if config.address is None:
            self.control = ControlProcess(config)
        self.address = config.address or self.control.address  # type: ignore[union-attr]
        self.driver = uuid.uuid4().hex[:12]
        self._client = ControlClient(self.address)
        self._lock, self._stopping, self._stopped = threading.Lock(), threading.Lock(), False
        self._sinks: dict[str, LogStreamSink] = {}
        self._changes: dict[str, dict[str, Any]] = {}
        """Messages with changes since the start; a control plane that replaces a dead one gets them again."""
        self._marked: Mapping[str, ClassStatus] = {}
        """The classes at the last `mark`."""
        if self.control is None:
            check_shared(config, self.request)
        self._agent = Agent(self)

    # -- reading --------------------------------------------------------------------------------

    def read_stream(
        self,
        name: str,
        cls: str,
        metadata: bool | Sequence[str] = False,
        query: str | None = None,
        starting: Starting = "earliest",
    ) -> DataFrame:
        """A governed streaming DataFrame of a stream: use it like any other.

        Args:
            name: The stream: a directory of the log, or a name in `streams` of the configuration.
            cls: The class of the query that reads the stream.
            metadata: `True` or names of `_arrival`, `_position`, `_seq`, `_sic`, `_weight` to add.
            query: The query's name in reports; by default the stream's name.
            starting: Where a new query begins: at the "earliest" row of the log, after the "latest", at
                {"positions": {0: 1200}}, at {"time": "2026-11-18T12:00:00Z"}, or where {"reader": id} stands.
        """
        _check_name(query or name)
        return self._read(name, cls, metadata, query or name, "", starting)

    def query(self, name: str, cls: str) -> QueryReaders:
        """Readers for one query with several sources: each micro-batch cuts all sources at one arrival time.

        Args:
            name: The query's name, used once.
            cls: The query's class.
        """
        self._check_class(cls)
        _check_name(name)
        if name in self._names:
            raise InvalidInputError("a query's name is used once", repr(name), "choose another")
        self._names.add(name)
        return QueryReaders(self, name, cls)

    def _read(
        self, name: str, cls: str, metadata: bool | Sequence[str], query: str, slot: str, starting: Starting
    ) -> DataFrame:
        self._check_class(cls)
        config = self.config.classes[cls]
        place = place_of(self.config, name)
        stream = str(place.stream)
        with suppress(ControlSilentError):  # the source asks again when it joins the control plane
            self.request({"op": "reads", "stream": stream, "cls": cls})
        options = SourceOptions(
            stream=stream,
            read_from=place.read_from,
            query=query,
            cls=cls,
            address=self.address,
            metadata=metadata_columns(metadata),
            tasks=self.spark.sparkContext.defaultParallelism,
            fail_open_after_s=self.config.fail_open_after_s,
            poison_after=config.poison_after or 0,
            shed_lane=config.shed_lane,
            starting=check_starting(starting),
            slot=slot,
            token=uuid.uuid4().hex,
            driver=self.driver,
            stw_s=self.config.stw_s,
        )
        self.tokens.add(options.token)
        return self.spark.readStream.format(FORMAT_NAME).option("penstock", options.to_option()).load()

    def _read_changes(self, name: str, metadata: Sequence[str], query: str, starting: Starting) -> DataFrame:
        place = place_of(self.config, name)
        options = SourceOptions(
            stream=str(place.stream),
            read_from=place.read_from,
            query=query,
            address=self.address,
            metadata=metadata_columns(metadata),
            tasks=self.spark.sparkContext.defaultParallelism,
            starting=check_starting(starting),
            beside=f"{query}@{self.driver}",
        )
        return self.spark.readStream.format(FORMAT_NAME).option("penstock", options.to_option()).load()

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Starts a query and waits until it has asked for rows, so that the next query can be started.

        Spark gives the Python process of a source ten seconds to connect. Queries that are started together,
        or beside running queries, may miss that. The query is then started again, a few times.

        Args:
            writer: `result.writeStream` with its sink and options, not started.

        Returns:
            The query. It may have ended already: `exception()` says why.
        """
        query = start_in_turn(writer.start, _log.warning)
        if was_late(query):
            raise PenstockError(too_late(query.name)) from query.exception()
        return query

    # -- sharing --------------------------------------------------------------------------------

    def share(
        self, name: str, result: DataFrame, config: LogConfig | None = None, fsync: Fsync = "never"
    ) -> LogStreamSink:
        """A sink that makes a result a shared stream, which queries of other classes can read.

            rows = flow.read_stream("readings", cls="gold", metadata=penstock.ORIGIN)
            hot = rows.where("celsius > 30")
            hot.writeStream.foreachBatch(flow.share("hot", hot)).option("checkpointLocation", ...).start()
            flow.read_stream("hot", cls="bulk")

        Rows of the shared stream keep arrival, SIC, weight and kept fraction of the rows they are computed
        from, so that delays count from the first arrival. The class of the result owns the shared stream; no
        class above it may read the stream. The flow closes the sink when it stops.

        Args:
            name: Name of the shared stream, which is created if it does not exist.
            result: What to share, with `_arrival`, `_sic`, `_weight` and `_kept`, from readers of one class.
            config: Layout of the stream, if it is created.
            fsync: When appends reach the disk, see `log_sink`.
        """
        check_in_log(self.config, name)
        missing = [column for column in ORIGIN if column not in result.columns]
        if missing:
            raise InvalidInputError(
                f"shared stream {name} has the columns {', '.join(ORIGIN)}",
                f"a result without {', '.join(missing)}",
                "read with metadata=penstock.ORIGIN and select them",
            )
        mine = [source for source in sources_of(result) if source.token in self.tokens]
        classes = sorted({source.cls for source in mine})
        if len(classes) != 1:
            raise InvalidInputError(
                f"shared stream {name} comes from governed streams of one class",
                " and ".join(classes) or "none of this flow",
                "read them with flow.read_stream or flow.query",
            )
        tokens = sorted(source.token for source in mine)
        message = {"op": "share", "stream": str(self.config.log / name), "cls": classes[0], "tokens": tokens}
        self.request(message)
        if name in self._sinks:  # a query that is started again
            self._sinks.pop(name).close()
        sink = log_sink(self.config.log / name, result.schema, config, fsync)
        self._changes[f"share {name}"] = message
        self._sinks[name] = sink
        return sink

    def _check_class(self, cls: str) -> None:
        if cls not in self.config.classes:
            raise UnknownNameError("class", cls, self.config.classes)

    # -- looking and changing -------------------------------------------------------------------

    def status(self) -> Status:
        """Every class and query as it is now: rows, delays, shares, costs."""
        found = Status.from_json(self.request({"op": "status"})["status"])
        return replace(found, marked=self._marked)

    def plan(self) -> dict[str, Any]:
        """Whether the classes' targets can be met, by what was measured so far.

        For each class: the time it needs, the time its share gives, the time that is free. `says` has the
        same in sentences, and names a target that no allocation can meet.
        """
        plan: dict[str, Any] = self.request({"op": "plan"})["plan"]
        return plan

    def set_target(self, cls: str, target: str | float) -> None:
        """Changes a class's delay target; refused if the target is below what was measured to be possible."""
        self.change(cls, target=target)

    def change(self, cls: str, **changes: Any) -> None:
        """Changes settings of a class while the flow runs, by their names in the configuration."""
        self._check_class(cls)
        self.request({"op": "change", "cls": cls, "changes": changes})
        before = self._changes.pop(cls, {"changes": {}})["changes"]
        self._changes[cls] = {"op": "change", "cls": cls, "changes": both_changes(before, changes)}

    def remove_class(self, cls: str) -> None:
        """Removes a class whose queries have stopped; the other classes share its part of the time.

        Raises:
            InvalidInputError: The class has running queries, owns a shared stream that others read, or is
                the last class.
        """
        self._check_class(cls)
        active = {s.query for query in self.active_queries() for s in sources_of(query) if s.cls == cls}
        if active:  # a query that was just started may not have joined the control plane yet
            raise InvalidInputError(RUNNING.format(cls), ", ".join(sorted(active)), "stop them first")
        message, deadline = {"op": "remove", "cls": cls}, time.monotonic() + LEAVING_S
        while True:
            try:
                self.request(message)
                break
            except InvalidInputError as error:  # a query that was just stopped may not have left yet
                if error.rule != RUNNING.format(cls) or time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
        left = {name: config for name, config in self.config.classes.items() if name != cls}
        self.config = self.config.model_copy(update={"classes": left})
        self._changes = {key: change for key, change in self._changes.items() if change.get("cls") != cls}
        self._changes[cls] = message

    def set_shedding(self, on: bool) -> None:
        """The kill switch. When off, no class sheds anything; turns and grant sizes stay."""
        self.request({"op": "shedding", "on": on})
        self._changes["shedding"] = {"op": "shedding", "on": on}

    def resend_changes(self) -> None:
        """Sends all changes since the start to a new control plane."""
        for message in list(self._changes.values()):
            try:
                self.request(message)
            except InvalidInputError as error:  # one refused change must not hold up the others
                _log.warning("a new control plane refused what the old one had accepted: %s", error)

    def mark(self) -> None:
        """Lets the `_since_mark` figures of this flow's `status` count from now on."""
        self._marked = self.status().classes

    def drain(self, timeout_s: float = 60.0) -> bool:
        """Processes all waiting rows, sheds none of them, and closes windows that the watermark has passed.

        Producers should have stopped.

        Returns:
            Whether no rows waited any more within the timeout.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                self.request({"op": "drain", **self._mine()})
                left = self.request({"op": "left", **self._mine()})
                if not left["unfinished"] and self._tokens_in_use() <= Counter(left["joined"]):
                    return True
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.1)
        finally:
            self.request({"op": "drain", "on": False, **self._mine()})

    # -- stopping -------------------------------------------------------------------------------

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stops the governed queries between two micro-batches, then the control plane.

        A second call is a no-op.
        """
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
        self._agent.stop()
        self._refuse(timeout_s)
        running: list[StreamingQuery] = []
        with suppress(Py4JError):  # Spark was stopped before, and the queries with it
            running = self.active_queries()
        for query in running:
            with suppress(PenstockError):  # the query is stopped even if it never asks
                await_question(query, STARTING_S)
            query.stop()
        self._agent.close()
        for name, sink in self._sinks.items():
            sink.close()
            with suppress(PenstockError):  # the control plane may be gone already
                self.request({"op": "release", "stream": str(self.config.log / name)})
        if self.control is not None:
            self.control.stop()
        self._client.close()

    def _refuse(self, timeout_s: float) -> None:
        """Refuses grants and waits until no batch runs: a stop inside a batch may end in a stack overflow."""
        deadline = time.monotonic() + timeout_s
        try:
            while self.request({"op": "refuse", **self._mine()})["running"] and time.monotonic() < deadline:
                time.sleep(0.05)
        except ControlSilentError:
            pass  # nothing to wait for: the sources go on by themselves and are stopped at any point

    def active_queries(self) -> list[StreamingQuery]:
        """The streaming queries of this session that read through this flow."""
        return [query for query in self.spark.streams.active if self.tokens & tokens_of(query)]

    def _mine(self) -> dict[str, Any]:
        """The tokens of this flow in a command: a shared control plane also has queries of other drivers."""
        return {"tokens": sorted(self.tokens)}

    def _tokens_in_use(self) -> Counter[str]:
        """Number of running queries by token, whether or not their sources have asked yet."""
        return Counter(t for q in self.spark.streams.active for t in self.tokens & tokens_of(q))

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message to the control plane; see `penstock.host.wire`."""
        with self._lock:
            return self._client.request(message)


def _check_name(query: str) -> None:
    """Refuses a query's name that cannot be part of a reader's id, which is a file name in the log."""
    if not is_file_name(query, MOST_LETTERS):
        raise InvalidInputError(
            f"a query's name is up to {MOST_LETTERS} letters, digits, dots, dashes and underscores",
            repr(query),
            "for example fraud-by-account",
        )


class QueryReaders:
    """Readers of one query with several sources."""

    def __init__(self, flow: Flow, name: str, cls: str) -> None:
        self._flow, self.name, self.cls = flow, name, cls
        self._count = 0

    def read_stream(
        self, name: str, metadata: bool | Sequence[str] = False, starting: Starting = "earliest"
    ) -> DataFrame:
        """One of the query's streams; see `Flow.read_stream`."""
        self._count += 1
        slot = f"{self._count}:{name}"
        return self._flow._read(name, self.cls, metadata, self.name, slot, starting)

    def read_changes(
        self, name: str, metadata: Sequence[str] = (), starting: Starting = "earliest"
    ) -> DataFrame:
        """A stream of changes beside the query's streams: with each of the query's grants, all its new rows.

        The stream is not governed: after a shed change, the relation would be wrong for ever. In the plan it
        must come after one of the query's streams, because Spark asks its sources in that order.
        """
        return self._flow._read_changes(name, metadata, self.name, starting)
