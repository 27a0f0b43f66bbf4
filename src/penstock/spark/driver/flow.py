"""`penstock.attach`: a Spark application's governed streams, and the control plane that governs them."""

from __future__ import annotations

import logging
import re
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
from penstock.spark.driver.agent import Agent, ControlProcess, sources_of, tokens_of
from penstock.spark.driver.shared import check_shared
from penstock.spark.driver.starting import await_question, start_in_turn, too_late, was_late
from penstock.spark.session import adopt_session
from penstock.spark.sink import LogStreamSink, log_sink
from penstock.spark.source.data_source import FORMAT_NAME, PenstockSource, SourceOptions
from penstock.spark.source.metadata import metadata_columns
from penstock.streams.embedded.writer import Fsync, LogConfig
from penstock.streams.protocol import ORIGIN
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError
from penstock.vocabulary.status import ClassStatus, Status

_log = logging.getLogger(__name__)

MOST_LETTERS = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_LETTERS - 1}}}")
STARTING_S = 15.0
"""Time in which a query that was just started asks, or Spark gives up on it. A source's Python process that
finds its query stopped before it has connected reports that as a traceback."""
LEAVING_S = 10.0
"""Time in which a stopped query's source is gone."""


def attach(spark: SparkSession, config: str | Path | Mapping[str, Any] | FlowConfig) -> Flow:
    """Governs streaming queries of a Spark application.

    Args:
        spark: From `penstock.session`, or your own.
        config: A YAML file, the same as a mapping, or a `FlowConfig`.

    Returns:
        The flow: `flow.read_stream(name, cls=...)` gives governed streaming DataFrames. Use it in a `with`,
        or call `flow.stop()`.
    """
    return Flow(spark, load_flow_config(config))


class Flow:
    """The governed streams of one Spark application."""

    def __init__(self, spark: SparkSession, config: FlowConfig) -> None:
        adopt_session(spark)
        self.spark, self.config = spark, config
        spark.dataSource.register(PenstockSource)
        self._names: set[str] = set()
        self.tokens: set[str] = set()
        self.control: ControlProcess | None = None
        if config.address is None:
            self.control = ControlProcess(config)
        self.address = config.address or self.control.address  # type: ignore[union-attr]
        self.driver = uuid.uuid4().hex[:12]
        self._client = ControlClient(self.address)
        self._lock, self._stopping = threading.Lock(), threading.Lock()
        self._stopped = False
        self._sinks: dict[str, LogStreamSink] = {}
        self._said: dict[str, dict[str, Any]] = {}
        """What was changed since the start: a control plane that replaces a dead one is told again."""
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
        starting: str = "earliest",
    ) -> DataFrame:
        """A governed streaming DataFrame of a stream: use it like any other.

        Args:
            name: The stream, a directory of the log.
            cls: The class whose target and share its query has.
            metadata: `True` or names of `_arrival`, `_position`, `_seq`, `_sic`, `_weight` to add.
            query: What to call its query in reports; the stream's name by default.
            starting: A new query begins at the "earliest" row of the log, or with the "latest".
        """
        _check_name(query or name)
        return self._read(name, cls, metadata, query or name, "", starting)

    def query(self, name: str, cls: str) -> QueryReaders:
        """Readers for one query with several sources: its micro-batches cut all of them at one moment.

        Args:
            name: The query's name, used once.
            cls: Its class.
        """
        self._check_class(cls)
        _check_name(name)
        if name in self._names:
            raise InvalidInputError("a query's name is used once", repr(name), "choose another")
        self._names.add(name)
        return QueryReaders(self, name, cls)

    def _read(
        self, name: str, cls: str, metadata: bool | Sequence[str], query: str, slot: str, starting: str
    ) -> DataFrame:
        self._check_class(cls)
        if starting not in ("earliest", "latest"):
            raise UnknownNameError("starting", starting, ("earliest", "latest"))
        config = self.config.classes[cls]
        stream = str(self._stream(name))
        with suppress(ControlSilentError):  # the source asks again when it joins
            self.request({"op": "reads", "stream": stream, "cls": cls})
        options = SourceOptions(
            stream=stream,
            read_from=f"{self.config.read_from or self.config.log}/{name}",
            query=query,
            cls=cls,
            address=self.address,
            metadata=metadata_columns(metadata),
            tasks=self.spark.sparkContext.defaultParallelism,
            fail_open_after_s=self.config.fail_open_after_s,
            poison_after=config.poison_after or 0,
            shed_lane=config.shed_lane,
            starting=starting,
            slot=slot,
            token=uuid.uuid4().hex,
            driver=self.driver,
            stw_s=self.config.stw_s,
        )
        self.tokens.add(options.token)
        return self.spark.readStream.format(FORMAT_NAME).option("penstock", options.to_option()).load()

    def _read_changes(self, name: str, metadata: Sequence[str], query: str, starting: str) -> DataFrame:
        options = SourceOptions(
            stream=str(self._stream(name)),
            read_from=f"{self.config.read_from or self.config.log}/{name}",
            query=query,
            address=self.address,
            metadata=metadata_columns(metadata),
            tasks=self.spark.sparkContext.defaultParallelism,
            starting=starting,
            beside=f"{query}@{self.driver}",
        )
        return self.spark.readStream.format(FORMAT_NAME).option("penstock", options.to_option()).load()

    def _stream(self, name: str) -> Path:
        found = self.config.log / name
        if not (found / "stream.json").exists():
            known = [path.parent.name for path in self.config.log.glob("*/stream.json")]
            if known:
                raise UnknownNameError("a stream", name, known)
            raise InvalidInputError(
                f"stream {name} is in the log at {self.config.log}", "no stream there", "create it first"
            )
        return found

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Starts a query and waits until it has asked for rows: then the next one can be started.

        Spark gives the Python process of a source ten seconds to connect. Queries that are started together,
        or beside others that run, may miss that; this one is then started again, a few times.

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
        """A sink that makes a result a shared segment: a stream that queries of other classes read.

            rows = flow.read_stream("readings", cls="gold", metadata=penstock.ORIGIN)
            hot = rows.where("celsius > 30")
            hot.writeStream.foreachBatch(flow.share("hot", hot)).option("checkpointLocation", ...).start()
            flow.read_stream("hot", cls="bulk")

        Its rows keep arrival, SIC, weight and kept part of those they come from: delays count from there.
        The class of the result owns it, and no class above that may read it. The flow closes the sink when
        it stops.

        Args:
            name: The stream; it is created if it is not there.
            result: What to share, with `_arrival`, `_sic`, `_weight` and `_kept`, from readers of one class.
            config: Of a stream that is created.
            fsync: When appends reach the disk, see `log_sink`.
        """
        missing = [column for column in ORIGIN if column not in result.columns]
        if missing:
            raise InvalidInputError(
                f"segment {name} keeps {', '.join(ORIGIN)} of the rows it comes from",
                f"a result without {', '.join(missing)}",
                "read with metadata=penstock.ORIGIN and select them",
            )
        mine = [source for source in sources_of(result) if source.token in self.tokens]
        classes = sorted({source.cls for source in mine})
        if len(classes) != 1:
            raise InvalidInputError(
                f"segment {name} comes from governed streams of one class",
                " and ".join(classes) or "none of this flow",
                "read them with flow.read_stream or flow.query",
            )
        tokens = sorted(source.token for source in mine)
        message = {"op": "share", "stream": str(self.config.log / name), "cls": classes[0], "tokens": tokens}
        self.request(message)
        if name in self._sinks:  # a query that is started again
            self._sinks.pop(name).close()
        sink = log_sink(self.config.log / name, result.schema, config, fsync)
        self._said[f"share {name}"] = message
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
        """What each class needs of the time, what its share gives, what is free, as measured so far.

        `says` of a class has it in sentences; a target that no allocation can meet is named there.
        """
        plan: dict[str, Any] = self.request({"op": "plan"})["plan"]
        return plan

    def set_target(self, cls: str, target: str | float) -> None:
        """Changes a class's delay target; below what was measured to be possible it is refused."""
        self.change(cls, target=target)

    def change(self, cls: str, **changes: Any) -> None:
        """Changes settings of a class while it runs, by their names in the configuration."""
        self._check_class(cls)
        self.request({"op": "change", "cls": cls, "changes": changes})
        before = self._said.pop(cls, {"changes": {}})["changes"]
        self._said[cls] = {"op": "change", "cls": cls, "changes": both_changes(before, changes)}

    def remove_class(self, cls: str) -> None:
        """Takes out a class whose queries have stopped; the others share its part of the time.

        Raises:
            InvalidInputError: It has running queries, owns a segment that others read, or is the last.
        """
        self._check_class(cls)
        active = {s.query for query in self.active_queries() for s in sources_of(query) if s.cls == cls}
        if active:  # one that has just started may not have joined yet
            raise InvalidInputError(RUNNING.format(cls), ", ".join(sorted(active)), "stop them first")
        message, deadline = {"op": "remove", "cls": cls}, time.monotonic() + LEAVING_S
        while True:
            try:
                self.request(message)
                break
            except InvalidInputError as error:  # one that was just stopped may not have left yet
                if error.rule != RUNNING.format(cls) or time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
        left = {name: config for name, config in self.config.classes.items() if name != cls}
        self.config = self.config.model_copy(update={"classes": left})
        self._said = {key: said for key, said in self._said.items() if said.get("cls") != cls}
        self._said[cls] = message

    def set_shedding(self, on: bool) -> None:
        """The kill switch: off, nothing is shed in any class; turns and grant sizes stay."""
        self.request({"op": "shedding", "on": on})
        self._said["shedding"] = {"op": "shedding", "on": on}

    def say_again(self) -> None:
        """Tells a new control plane what was changed since the start."""
        for message in list(self._said.values()):
            try:
                self.request(message)
            except InvalidInputError as error:  # the rest must not wait for it
                _log.warning("a new control plane refused what the old one had accepted: %s", error)

    def mark(self) -> None:
        """Begins a new stretch for the `_since_mark` figures of this flow's `status`."""
        self._marked = self.status().classes

    def drain(self, timeout_s: float = 60.0) -> bool:
        """Processes what waits, sheds nothing of it, and closes the windows that the watermark has passed.

        Returns:
            Whether nothing waited any more within the timeout; producers should have stopped.
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
        """Stops the governed queries between two micro-batches, then the control plane. Again is a no-op."""
        with self._stopping:
            if self._stopped:
                return
            self._stopped = True
        self._agent.stop()
        self._refuse(timeout_s)
        running: list[StreamingQuery] = []
        with suppress(Py4JError):  # Spark was stopped before, and its queries with it
            running = self.active_queries()
        for query in running:
            with suppress(PenstockError):  # it is stopped where it is
                await_question(query, STARTING_S)
            query.stop()
        self._agent.close()
        for name, sink in self._sinks.items():
            sink.close()
            with suppress(PenstockError):  # a control plane that others share goes on without it
                self.request({"op": "release", "stream": str(self.config.log / name)})
        if self.control is not None:
            self.control.stop()
        self._client.close()

    def _refuse(self, timeout_s: float) -> None:
        """Refuses grants and waits until no batch runs: stopping inside one may end in a stack overflow."""
        deadline = time.monotonic() + timeout_s
        try:
            while self.request({"op": "refuse", **self._mine()})["running"] and time.monotonic() < deadline:
                time.sleep(0.05)
        except ControlSilentError:
            pass  # nothing to wait for: the sources go on by themselves and are stopped where they are

    def active_queries(self) -> list[StreamingQuery]:
        """The streaming queries of this session that read through this flow."""
        return [query for query in self.spark.streams.active if self.tokens & tokens_of(query)]

    def _mine(self) -> dict[str, Any]:
        """Whose queries a command is for: a shared control plane has those of other drivers as well."""
        return {"tokens": sorted(self.tokens)}

    def _tokens_in_use(self) -> Counter[str]:
        """By token, the queries that run with it, whether or not their sources have asked yet."""
        return Counter(t for q in self.spark.streams.active for t in self.tokens & tokens_of(q))

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message to the control plane; see `penstock.host.server`."""
        with self._lock:
            return self._client.request(message)


def _check_name(query: str) -> None:
    """Refuses a name that cannot be part of a reader's, which is a file name in the log."""
    if not _NAME.fullmatch(query):
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
        self, name: str, metadata: bool | Sequence[str] = False, starting: str = "earliest"
    ) -> DataFrame:
        """One of the query's streams; see `Flow.read_stream`."""
        self._count += 1
        slot = f"{self._count}:{name}"
        return self._flow._read(name, self.cls, metadata, self.name, slot, starting)

    def read_changes(self, name: str, metadata: Sequence[str] = (), starting: str = "earliest") -> DataFrame:
        """A stream of changes beside the query's streams: all of its rows come, with the query's grants.

        Nobody governs it: what a change that is shed leaves would be wrong for ever. In the plan it must come
        after one of the query's streams, for Spark asks its sources in that order.
        """
        return self._flow._read_changes(name, metadata, self.name, starting)
