"""A pipeline: streams, classes, queries and sinks, checked before anything starts.

streams: {readings: {schema: {device: long, at: timestamp}, source: {kind: generator, rate: 1000}}}
classes: {gold: {target: 2s}}
queries: {hot: {class: gold, sql: SELECT ... FROM readings, sink: {kind: parquet, path: results/hot}}}

`examples/pipelines` has a whole one with comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from penstock.config.flow import FlowConfig, Governing
from penstock.config.mistakes import Part, placing, refused, unknown_name
from penstock.config.places import Place
from penstock.config.shedding import WindowSettings
from penstock.config.spark import SparkConfig
from penstock.cql.analysis.families import Family
from penstock.cql.analysis.windowing import Mode, streams_read
from penstock.cql.errors import CqlError
from penstock.pipeline.spec.boxes import Box, boxes_text, place_in_boxes
from penstock.pipeline.spec.cql import Continuous, answers_of, check_estimates, continuous
from penstock.pipeline.spec.sinks import (
    AnySink,
    ConsoleSink,
    LogSink,
    MemorySink,
    ParquetSink,
    sink_guarantee,
)
from penstock.pipeline.spec.sources import LogSource, kind_only
from penstock.pipeline.spec.sql import streams_in, table_names
from penstock.pipeline.spec.streams import StreamConfig
from penstock.pipeline.spec.views import ViewConfig, decide, query_of
from penstock.streams.protocol import RESERVED_COLUMNS
from penstock.vocabulary.errors import UnknownNameError
from penstock.vocabulary.names import is_sql_name

__all__ = ["PipelineConfig", "QueryConfig", "sink_guarantee"]

_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
QUERY_KEYS = ("sql", "function", "cql", "cql_file", "boxes")
"""Keys of a query; exactly one of them says what the query computes."""


def _metadata(value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if not isinstance(value, list | tuple):
        raise refused("must be true, false or a list", repr(value), f"{list(RESERVED_COLUMNS)}")
    for name in value:
        if name not in RESERVED_COLUMNS:
            raise unknown_name(str(name), RESERVED_COLUMNS)
    return tuple(value)


def _refuse_trigger(raw: Any) -> Any:
    if isinstance(raw, dict) and "trigger" in raw:
        raise refused(
            "is not a key",
            repr(raw["trigger"]),
            "Penstock decides when a micro-batch runs; give the class a target",
            "trigger",
        )
    return raw


def _sql_name(name: str) -> str:
    if not is_sql_name(name):
        raise refused(
            "must have a name of letters, digits and _", repr(name), "as SQL needs it, e.g. my_readings"
        )
    return name


SqlName = Annotated[str, AfterValidator(_sql_name)]
"""Name of a stream or query, which becomes a view or the table of a memory sink in Spark SQL."""


class QueryConfig(Part):
    """One query: its class, what it computes, and where results go."""

    cls: str = Field(alias="class", description="one of the classes")
    sql: str | None = Field(None, description="SELECT ... FROM a stream")
    function: str | None = Field(None, description="module:function that returns a DataFrame")
    cql: str | None = Field(None, description="a continuous query, SELECT ... FROM readings [RANGE 1 MIN]")
    cql_file: Place | None = Field(None, description="the same in a file, e.g. queries/boilers.cql")
    boxes: dict[SqlName, Box] | None = Field(
        None, min_length=1, description="{warm: {filter: celsius > 30, from: readings}}"
    )
    answers: Mode | None = Field(
        None, description="of cql: windows (each one's result once) or relation (the exact answer as changes)"
    )
    estimates: bool = Field(
        False, description="of cql by windows: true gives counts, sums and averages of all that was offered"
    )
    streams: tuple[str, ...] = Field((), description="the streams it reads, e.g. [readings]")
    metadata: Annotated[bool | tuple[str, ...], BeforeValidator(_metadata)] = Field(
        False, description="true, or a list of metadata columns such as [_weight]"
    )
    mode: Literal["append", "update", "complete"] = Field("append", description="append, update or complete")
    sink: Annotated[AnySink, BeforeValidator(kind_only)] = Field(
        ConsoleSink(), description="{kind: console}, parquet, log, memory or noop with its settings"
    )
    checkpoint: Place | None = Field(None, description="a directory; one of checkpoints by default")
    shuffle_partitions: int | None = Field(None, ge=1, description="1 or more; the session's by default")

    _no_trigger = model_validator(mode="before")(_refuse_trigger)

    @model_validator(mode="after")
    def _consistent(self) -> QueryConfig:
        given = [key for key in QUERY_KEYS if getattr(self, key) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise refused(f"must have one of {', '.join(QUERY_KEYS)}", got, "sql: SELECT ... FROM readings")
        for key in ("streams", "metadata"):
            if self.is_continuous and getattr(self, key):
                raise refused("is not a key beside cql", getattr(self, key), "leave it out", key)
        for key in ("answers", "estimates"):
            if getattr(self, key) and not self.is_continuous:
                raise refused("is a key beside cql alone", repr(getattr(self, key)), "leave it out", key)
        if self.is_continuous and self.mode != "append":
            raise refused("must be append for cql", repr(self.mode), "leave it out", "mode")
        if self.sql is not None and not self.sql.strip():
            raise refused("must not be empty", repr(self.sql), "SELECT ... FROM readings", "sql")
        if self.function is not None and not _FUNCTION.fullmatch(self.function):
            raise refused(
                "must be module:function", repr(self.function), "for example my_queries:averages", "function"
            )
        if self.function is not None and not self.streams:
            raise refused("is required beside a function", "nothing", "list what it reads", "streams")
        if self.mode != "append" and isinstance(self.sink, ParquetSink):
            raise refused("must be append for a parquet sink", repr(self.mode), "files only grow", "mode")
        if self.mode == "complete" and isinstance(self.sink, LogSink):
            raise refused(
                "must be append or update for a log sink", repr(self.mode), "logs only grow", "mode"
            )
        return self

    @property
    def kind(self) -> str:
        """The key that says what the query computes."""
        return next(key for key in QUERY_KEYS if getattr(self, key) is not None)

    @property
    def is_continuous(self) -> bool:
        """Whether the query is written in CQL, or as boxes."""
        return self.kind not in ("sql", "function")

    def continuous_text(self, streams: Mapping[str, StreamConfig]) -> str:
        """The query in CQL.

        Raises:
            CqlError: The query's file cannot be read, or its boxes are no graph.
        """
        if self.boxes is not None:
            return boxes_text(self.boxes, streams)
        if self.cql_file is None:
            return self.cql or ""
        try:
            return Path(self.cql_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CqlError("a file of CQL exists, in UTF-8", f"{error}", "name another file") from None


class PipelineConfig(Governing):
    """The pipeline that `penstock run` runs: a flow, its streams and its queries."""

    streams: dict[SqlName, StreamConfig] = Field(
        min_length=1, description="{readings: {schema: {...}, source: {...}}}"
    )
    queries: dict[SqlName, QueryConfig] = Field(
        min_length=1, description="{hot: {class: gold, sql: ..., sink: {...}}}"
    )
    views: dict[SqlName, ViewConfig] = Field(
        {}, description="{warm: {cql: SELECT * FROM readings WHERE celsius > 30}}, for queries in CQL"
    )
    checkpoints: Place | None = Field(
        None, description="directory of the queries' checkpoints, which lets runs go on from each other"
    )
    spark: SparkConfig = Field(SparkConfig(), description="{master: local[4], memory: 4g}")

    _no_trigger = model_validator(mode="before")(_refuse_trigger)

    @model_validator(mode="after")
    def _consistent(self) -> PipelineConfig:
        self._refuse_twins(
            "streams", ((name, name.lower()) for name in self.streams), "differ by more than case"
        )
        self._check_views()
        for name, query in self.queries.items():
            if query.cls not in self.classes:
                raise unknown_name(query.cls, self.classes, "queries", name, "class")
            self._check_streams(name, query)
            self._check_log_sink(name, query)
        queries = self.queries.items()
        self._refuse_twins(
            "queries",
            ((n, q.sink.path.rstrip("/")) for n, q in queries if isinstance(q.sink, ParquetSink)),
            "have a parquet path of its own",
        )
        self._refuse_twins(
            "queries",
            ((n, q.sink.stream) for n, q in queries if isinstance(q.sink, LogSink)),
            "have a log stream of its own to write to",
        )
        self._refuse_twins(
            "queries",
            ((n, (q.sink.name or n).lower()) for n, q in queries if isinstance(q.sink, MemorySink)),
            "have a memory table of its own",
        )
        self._refuse_twins(
            "queries",
            ((n, q.checkpoint.rstrip("/")) for n, q in queries if q.checkpoint is not None),
            "have a checkpoint of its own",
        )
        self._check_shed()
        for name in self.classes:
            if not any(query.cls == name for query in self.queries.values()):
                raise refused(
                    "must have a query", "none", "give it one, or leave the class out", "classes", name
                )
        return self

    @staticmethod
    def _refuse_twins(kind: str, named: Iterator[tuple[str, str]], rule: str) -> None:
        first: dict[str, str] = {}
        for name, value in named:
            if value in first:
                raise refused(
                    f"must {rule}", f"{value!r}, which {first[value]} has", "change one", kind, name
                )
            first[value] = name

    def _check_views(self) -> None:
        names = {name.lower(): kind for kind in ("streams", "queries") for name in getattr(self, kind)}
        for name, view in self.views.items():
            if name.lower() in names:
                kind = names[name.lower()]
                raise refused(f"must differ from all {kind}", repr(name), "rename it", "views", name)
            try:
                query_of(self, name)
                if view.computed == "once":
                    decide(self, name, lambda _: None)
            except CqlError as error:
                rule = f"{error.where} {error.rule}".strip()
                raise refused(rule, error.got, error.hint, "views", name, "cql") from None

    def _check_streams(self, name: str, query: QueryConfig) -> None:
        if query.is_continuous:
            try:
                meant = self.continuous(name)
                mode = answers_of(meant, query.answers)
                if query.estimates:
                    check_estimates(meant, mode, self.classes[query.cls].shed)
            except CqlError as error:
                where = error.where if query.boxes is None else place_in_boxes(error)
                rule = f"{where} {error.rule}".strip()
                raise refused(rule, error.got, error.hint, "queries", name, query.kind) from None
        for stream in query.streams:
            if stream not in self.streams:
                raise unknown_name(stream, self.streams, "queries", name, "streams")
        read = self.streams_of(name)
        if not read:
            tables = table_names(query.sql or "")
            if not tables:
                raise refused(
                    "must read a stream", repr(query.sql), "SELECT ... FROM a stream", "queries", name, "sql"
                )
            near = UnknownNameError("", tables[0], self.streams).hint
            raise refused(
                f"must read a stream: {', '.join(self.streams)}",
                repr(tables[0]),
                near,
                "queries",
                name,
                "sql",
            )
        self._check_changes(name, query)
        if self.classes[query.cls].sheds_by_key:
            for stream in self.governed_streams_of(name):
                if self.streams[stream].key is None:
                    raise refused(
                        f"is required, because query {name} of class {query.cls} is shed by key",
                        "nothing",
                        "name a column of the stream",
                        "streams",
                        stream,
                        "key",
                    )

    def _check_changes(self, name: str, query: QueryConfig) -> None:
        """Refuses governed queries over changes: after a shed change, a relation would be wrong for ever."""
        changes = [stream for stream in self.streams_of(name) if self.streams[stream].changes is not None]
        if changes and not query.is_continuous:
            raise refused(
                "must not read a stream of changes: its query is governed, and a change that is shed leaves "
                "the relation wrong",
                changes[0],
                "write the query in CQL, which reads all changes; or leave out streams.*.changes",
                *("queries", name, query.kind),
            )
        if changes and not self.governed_streams_of(name):
            raise refused(
                "must read a stream beside relations: it has micro-batches when that has rows",
                ", ".join(changes),
                "join it with a stream, or run it over files: penstock cql run",
                *("queries", name, query.kind),
            )

    def _check_shed(self) -> None:
        """Refuses a class that sheds by columns that its streams lack, as far as these are declared."""
        for name, query in self.queries.items():
            shed = self.classes[query.cls].shed
            for stream in self.governed_streams_of(name):
                schema, time = self.streams[stream].arrow_schema(), self.streams[stream].event_time
                if schema is not None:
                    with placing("classes", query.cls, "shed"):
                        shed.check_columns(schema, stream, time)
        for cls in self.classes:
            times = self._times_of(cls)
            if self._wants_time(cls) and len(times) > 1:
                raise refused(
                    "must name a column: the streams of its queries declare different event times",
                    ", ".join(sorted(str(time) for time in times)),
                    "column: at, or a class for each",
                    *("classes", cls, "shed"),
                )

    def _wants_time(self, cls: str) -> bool:
        shed = self.classes[cls].shed
        return isinstance(shed, WindowSettings) and shed.column is None

    def _times_of(self, cls: str) -> set[str | None]:
        """Event times of the streams that a class's queries read."""
        names = [name for name, query in self.queries.items() if query.cls == cls]
        return {
            self.streams[stream].event_time for name in names for stream in self.governed_streams_of(name)
        }

    def _check_log_sink(self, name: str, query: QueryConfig) -> None:
        if not isinstance(query.sink, LogSink):
            return
        stream, at = query.sink.stream, ("queries", name, "sink", "stream")
        if stream not in self.streams:
            raise unknown_name(stream, self.streams, *at)
        if not isinstance(self.streams[stream].source, LogSource):
            raise refused(
                "must be a stream that nothing else feeds",
                f"{stream!r}, fed by {self.streams[stream].source.kind}",
                f"set streams.{stream}.source to log, or write to another stream",
                *at,
            )
        if stream in self.streams_of(name):
            raise refused("must not be a stream that the query reads", repr(stream), "write to another", *at)

    def streams_of(self, query: str) -> tuple[str, ...]:
        """The streams a query reads: the listed streams, else the streams that its SQL or CQL names."""
        config = self.queries[query]
        if config.is_continuous:
            read = streams_read(self.continuous(query).query.plan)
            return tuple(name for name in self.streams if name in read)
        return config.streams or streams_in(config.sql or "", self.streams)

    def governed_streams_of(self, query: str) -> tuple[str, ...]:
        """The streams a query reads, without streams of changes, which are not governed."""
        return tuple(name for name in self.streams_of(query) if self.streams[name].changes is None)

    def continuous(self, query: str) -> Continuous:
        """The meaning of a query in CQL or of boxes."""
        return continuous(self.queries[query].continuous_text(self.streams), self.streams, self._views)

    @property
    def _views(self) -> dict[str, str]:
        return {name: view.cql for name, view in self.views.items()}

    def family_of(self, query: str) -> Family | None:
        """The family of queries that are computed together under this name, if there is one."""
        return self.continuous(query).family if self.queries[query].is_continuous else None

    def checkpoint_of(self, query: str, run: Path) -> str:
        """Place of a query's checkpoint: the query's own, the pipeline's, or one in the run directory."""
        return self.queries[query].checkpoint or f"{self.checkpoints or run / 'checkpoints'}/{query}"

    def flow_config(self) -> FlowConfig:
        """The part of the pipeline that the control plane needs."""
        classes = dict(self.classes)
        for name in filter(self._wants_time, self.classes):  # a log does not know the pipeline's event time
            column = next(iter(self._times_of(name)))
            shed = classes[name].shed.model_copy(update={"column": column})
            classes[name] = classes[name].model_copy(update={"shed": shed})
        values = {name: getattr(self, name) for name in Governing.model_fields}
        return FlowConfig.model_validate({**values, "classes": classes})
