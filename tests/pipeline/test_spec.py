"""A pipeline file: what is accepted, and what follows from it."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.config.flow import FlowConfig
from penstock.pipeline.spec.load import load_pipeline
from penstock.pipeline.spec.pipeline import PipelineConfig, sink_guarantee
from penstock.pipeline.spec.sinks import ConsoleSink, LogSink, MemorySink, ParquetSink
from penstock.vocabulary.errors import InvalidInputError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"

READINGS: dict[str, Any] = {
    "schema": {"device": "long", "celsius": "double", "at": "timestamp"},
    "event_time": "at",
    "source": {"kind": "generator", "rate": 1000},
}
GOOD: dict[str, Any] = {
    "log": "logs",
    "classes": {"gold": {"target": "2s"}, "bulk": {"target": "30s"}},
    "streams": {"readings": READINGS, "hot": {"schema": {"device": "long"}}},
    "queries": {
        "find": {
            "class": "gold",
            "sql": "SELECT device FROM readings",
            "sink": {"kind": "log", "stream": "hot"},
        },
        "count": {"class": "bulk", "sql": "SELECT count(*) FROM hot", "mode": "complete"},
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """The good pipeline with one key set; `None` removes it."""
    raw = copy.deepcopy(GOOD)
    *outer, last = path.split("/")
    part = raw
    for key in outer:
        part = part.setdefault(key, {})
    if value is None:
        del part[last]
    else:
        part[last] = value
    return raw


# -- what is accepted -----------------------------------------------------------------------------


def test_the_example_has_three_classes_two_inputs_and_four_queries() -> None:
    pipeline = load_pipeline(EXAMPLES / "three_classes.yaml")
    assert {name: cls.priority for name, cls in pipeline.classes.items()} == {
        "gold": 6.0,
        "silver": 3.0,
        "bronze": 1.0,
    }
    assert {query: pipeline.streams_of(query) for query in pipeline.queries} == {
        "find_hot": ("readings",),
        "alerts_with_readings": ("alerts", "readings"),
        "averages": ("readings",),
        "failing": ("readings",),
    }
    assert {name: stream.source.kind for name, stream in pipeline.streams.items()} == {
        "readings": "replay",
        "alerts": "generator",
        "hot": "log",
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_loads_and_survives_json(path: Path) -> None:
    pipeline = load_pipeline(path)
    assert PipelineConfig.from_json(pipeline.to_json()) == pipeline


def test_a_pipeline_loads_without_spark() -> None:
    code = "import sys, penstock.pipeline.spec.load as load, penstock.pipeline.feed.rows as rows\n"
    code += "sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_query_may_say_cls_as_python_does() -> None:
    raw = changed("queries/find/class", None)
    raw["queries"]["find"]["cls"] = "gold"
    assert load_pipeline(raw).queries["find"].cls == "gold"


def test_a_kind_alone_stands_for_a_source_or_a_sink() -> None:
    pipeline = load_pipeline(changed("queries/count/sink", "memory"))
    assert pipeline.queries["count"].sink == MemorySink()
    assert load_pipeline(changed("streams/hot/source", "log")).streams["hot"].source.kind == "log"


def test_streams_that_are_listed_win_over_those_in_the_sql() -> None:
    pipeline = load_pipeline(changed("queries/count/streams", ["readings", "hot"]))
    assert pipeline.streams_of("count") == ("readings", "hot")


def test_a_function_is_named_by_its_module_and_lists_its_streams() -> None:
    query = {"class": "gold", "function": "my.queries:averages", "streams": ["readings"]}
    assert load_pipeline(changed("queries/mine", query)).streams_of("mine") == ("readings",)


def test_a_stream_in_the_log_needs_no_schema() -> None:
    stream = load_pipeline(changed("streams/hot/schema", None)).streams["hot"]
    assert stream.arrow_schema() is None


@pytest.mark.parametrize(("given", "kept"), [(True, True), (False, False), (["_sic"], ("_sic",)), ([], ())])
def test_metadata_is_a_switch_or_a_list(given: object, kept: object) -> None:
    pipeline = load_pipeline(changed("queries/find/metadata", given))
    assert pipeline.queries["find"].metadata == kept
    assert PipelineConfig.from_json(pipeline.to_json()) == pipeline


def test_a_checkpoint_lies_in_the_run_directory_unless_it_is_given(tmp_path: Path) -> None:
    pipeline = load_pipeline(changed("queries/find/checkpoint", str(tmp_path / "mine")))
    assert pipeline.checkpoint_of("find", tmp_path) == str(tmp_path / "mine")
    assert pipeline.checkpoint_of("count", tmp_path) == str(tmp_path / "checkpoints" / "count")


def test_every_path_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("0.5\n", encoding="utf-8")
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        """
log: logs
classes: {gold: {target: 2s}}
streams:
  a: {schema: {x: long}, source: {kind: replay, trace: trace.txt}}
  b: {schema: {x: long}, source: {kind: files, path: in/*.csv}}
queries:
  q: {class: gold, sql: SELECT x FROM a, sink: {kind: parquet, path: out}, checkpoint: cp}
  r: {class: gold, sql: SELECT x FROM b, sink: {kind: parquet, path: "hdfs://host/out"}}
""",
        encoding="utf-8",
    )
    pipeline = load_pipeline(path)
    here = [pipeline.streams["a"].source.trace, pipeline.streams["b"].source.path]  # type: ignore[union-attr]
    here += [pipeline.queries["q"].sink.path, pipeline.queries["q"].checkpoint]  # type: ignore[union-attr]
    assert here == [str(tmp_path / name) for name in ("trace.txt", "in/*.csv", "out", "cp")]
    assert pipeline.queries["r"].sink == ParquetSink(path="hdfs://host/out")


def test_the_control_plane_gets_the_flow_alone() -> None:
    pipeline = load_pipeline(GOOD)
    flow = pipeline.flow_config()
    assert type(flow) is FlowConfig
    assert FlowConfig.from_json(flow.to_json()) == flow
    assert (flow.classes, flow.log) == (pipeline.classes, pipeline.log)


@pytest.mark.parametrize(
    ("sink", "guarantee"),
    [
        (ParquetSink(path="out"), "exactly once: "),
        (LogSink(stream="hot"), "exactly once: "),
        (ConsoleSink(), "at least once: "),
        (MemorySink(), "at least once: "),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_sink_says_what_it_guarantees_and_why(sink: Any, guarantee: str) -> None:
    assert sink_guarantee(sink).startswith(guarantee)
    assert len(sink_guarantee(sink)) > 40


def windowed(size: str = "1s", **settings: str) -> dict[str, Any]:
    return {"target": "2s", "shed": {"by": "window", "size": size, **settings}}


def test_windows_that_are_shed_whole_go_by_the_event_time_that_streams_declare() -> None:
    pipeline = load_pipeline(changed("classes/gold", windowed()))
    assert str(pipeline.flow_config().classes["gold"].shed) == "{by: window, size: 1s, column: at}"
    named = load_pipeline(changed("classes/bulk", windowed()))
    assert str(named.flow_config().classes["bulk"].shed) == "{by: window, size: 1s}", "hot declares none"


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (
            {"target": "2s", "shed": {"by": "utility", "utility": "celsus"}},
            r"classes\.gold\.shed: a column is one of those of stream readings; got: 'celsus'",
        ),
        (windowed(column="device"), "a timestamp column of stream readings; got: 'device'; hint: one of at"),
    ],
)
def test_columns_that_a_class_sheds_by_are_checked_where_they_are_declared(
    cls: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_pipeline(changed("classes/gold", cls))


def test_streams_with_different_event_times_need_the_column_of_windows() -> None:
    raw = changed("classes/gold", windowed())
    raw["streams"]["others"] = {**READINGS, "schema": {"device": "long", "when": "timestamp"}}
    raw["streams"]["others"]["event_time"] = "when"
    raw["queries"]["more"] = {"class": "gold", "sql": "SELECT device FROM others"}
    with pytest.raises(
        InvalidInputError, match=r"must name a column: .* different event times; got: at, when"
    ):
        load_pipeline(raw)
