"""Views that several queries read: what they mean, and where they are computed once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipeline.run.materialise import materialise_views
from penstock.pipeline.spec.load import load_pipeline
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.views import Seen, decide, readers_of
from penstock.streams.embedded.log import EmbeddedLog
from penstock.vocabulary.errors import InvalidInputError

WINDOW = "[RANGE 1 SEC SLIDE 1 SEC]"
RAW: dict[str, Any] = {
    "classes": {"gold": {"target": "2s", "priority": 6}, "bulk": {"target": "30s"}},
    "streams": {
        "readings": {
            "schema": {"k": "long", "v": "double", "at": "timestamp"},
            "event_time": "at",
            "lateness": "3s",
        }
    },
    "views": {"warm": {"cql": "SELECT k, v + 1 AS w, at AS time FROM readings WHERE v > 30;"}},
    "queries": {
        "a": {"class": "bulk", "cql": f"SELECT count(*) AS n FROM warm {WINDOW}"},
        "b": {"class": "gold", "cql": f"SELECT k, avg(w) AS w FROM warm {WINDOW} GROUP BY k"},
        "c": {"class": "bulk", "cql": "SELECT * FROM readings [NOW]"},
    },
}


def pipeline(folder: Path, **view: object) -> PipelineConfig:
    raw = copy.deepcopy(RAW)
    raw["views"]["warm"].update(view)
    return load_pipeline({**raw, "log": str(folder / "logs"), "checkpoints": str(folder / "checkpoints")})


def log_with(config: PipelineConfig, passing: int, of: int = 100) -> None:
    """Rows of which so many pass the view."""
    schema = config.streams["readings"].arrow_schema()
    assert schema is not None
    with EmbeddedLog.create(config.log / "readings", schema) as log:
        rows = [{"k": 1, "v": 31.0 if i < passing else 30.0, "at": 0} for i in range(of)]
        log.append(pa.RecordBatch.from_pylist(rows, schema=log.append_schema))


def begin(config: PipelineConfig, query: str) -> None:
    place = Path(config.checkpoint_of(query, Path())) if query in config.queries else None
    place = place or Path(str(config.checkpoints)) / query
    place.mkdir(parents=True)
    (place / "metadata").write_text("{}")


def test_a_view_means_what_it_would_inside_of_each_query(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    inside = load_pipeline(
        {
            **RAW,
            "log": "logs",
            "views": {},
            "queries": {
                **RAW["queries"],
                "a": {
                    "class": "bulk",
                    "cql": "SELECT count(*) AS n FROM "
                    f"ISTREAM(SELECT k, v + 1 AS w, at AS time FROM readings WHERE v > 30) {WINDOW}",
                },
                "b": {"class": "gold", "cql": "SELECT * FROM readings [NOW]"},
            },
        }
    )
    assert config.continuous("a").query == inside.continuous("a").query
    assert config.streams_of("a") == ("readings",)


def test_those_who_read_a_view_are_found_also_through_another(tmp_path: Path) -> None:
    raw = copy.deepcopy(RAW)
    raw["views"]["hot"] = {"cql": "SELECT k, w, time FROM warm WHERE w > 50"}
    raw["queries"]["d"] = {"class": "bulk", "cql": f"SELECT max(w) AS m FROM hot {WINDOW}"}
    config = load_pipeline({**raw, "log": str(tmp_path)})
    assert readers_of(config, "warm") == ["a", "b", "d"]
    assert readers_of(config, "hot") == ["d"]


def test_a_view_that_is_computed_once_is_a_stream_of_the_highest_class_that_reads_it(tmp_path: Path) -> None:
    config, said = materialise_views(pipeline(tmp_path, computed="once"), tmp_path / "run")
    assert said == ["view warm is computed once: as it says"]
    assert not config.views
    stream, writer = config.streams["warm"], config.queries["warm"]
    assert stream.columns == {"k": "bigint", "w": "double", "time": "timestamp"}
    assert (stream.event_time, stream.lateness_s) == ("time", 3.0)
    assert (writer.cls, writer.answers, writer.sink.kind) == ("gold", "rows", "log")
    assert config.streams_of("a") == ("warm",)
    assert config.streams_of("c") == ("readings",)


@pytest.mark.parametrize(
    ("seen", "once"),
    [(Seen(0.05, 500_000.0), True), (Seen(0.4, 500_000.0), False), (Seen(0.05, 50_000.0), False)],
    ids=["many rows, of which few pass", "many pass", "few rows"],
)
def test_it_is_computed_once_where_many_rows_come_and_few_pass(
    tmp_path: Path, seen: Seen, once: bool
) -> None:
    assert decide(pipeline(tmp_path), "warm", lambda _: seen).once is once


def test_what_the_log_has_of_its_stream_decides(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    log_with(config, passing=5, of=1000)
    settled, said = materialise_views(config, tmp_path / "run")
    assert "warm" not in settled.streams
    assert said == [
        "view warm is computed in each query: 0 % of 1,000 rows/s pass, 2 queries read them: "
        "as reading 351,020 rows/s once, 2,000 in each"
    ]


def test_without_rows_or_readers_it_is_computed_in_each_query(tmp_path: Path) -> None:
    config, said = materialise_views(pipeline(tmp_path), tmp_path / "run")
    assert (config.streams.keys(), said) == (
        {"readings"},
        ["view warm is computed in each query: nothing is known yet of the rows that pass"],
    )
    raw = copy.deepcopy(RAW)
    raw["queries"] = {"b": {"class": "gold", "sql": "SELECT k FROM readings"}, "c": raw["queries"]["c"]}
    _, said = materialise_views(load_pipeline({**raw, "log": str(tmp_path)}), tmp_path / "run")
    assert said == ["view warm is computed in each query: no query reads it"]


@pytest.mark.parametrize(("begun", "once"), [("a", False), ("warm", True)])
def test_what_was_settled_stays_with_the_checkpoints(tmp_path: Path, begun: str, once: bool) -> None:
    config = pipeline(tmp_path)
    begin(config, begun)
    settled, said = materialise_views(config, tmp_path / "run")
    assert ("warm" in settled.streams) is once
    assert "as when its readers' checkpoints were made" in said[0]


def test_a_stream_of_another_run_is_not_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pipeline(tmp_path)
    EmbeddedLog.create(config.log / "warm", pa.schema([("k", pa.int64())])).close()
    monkeypatch.setattr("penstock.pipeline.run.materialise._look", lambda *_: Seen(0.0, 1e6))
    _, said = materialise_views(config, tmp_path / "run")
    assert said[0].endswith("in each query: the log has a stream warm that another run has written")
    with pytest.raises(InvalidInputError, match=r"views\.warm is computed once into a new stream"):
        materialise_views(pipeline(tmp_path, computed="once"), tmp_path / "run")


@pytest.mark.parametrize(
    ("view", "error"),
    [
        ({"cql": "SELECT k FROM nothing"}, "views.warm.cql .*registered stream.*got: 'nothing'"),
        ({"cql": "SELECT k FROM readings; SELECT v FROM readings"}, "views.warm.cql a view is one query"),
        ({"cql": "SELECT k, w FROM warm"}, "got: 'warm'"),
        (
            {"cql": "SELECT k, v AS w FROM readings", "computed": "once"},
            "shows the event time of its stream, unchanged; got: view warm without at; hint: select at too",
        ),
        (
            {"cql": f"SELECT k, avg(v) AS w FROM readings {WINDOW} GROUP BY k", "computed": "once"},
            "drops and changes those of one stream; got: windows, groups",
        ),
    ],
    ids=["unknown stream", "two queries", "itself", "no event time", "windows"],
)
def test_a_view_that_cannot_be_is_refused(tmp_path: Path, view: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidInputError, match=error):
        pipeline(tmp_path, **view)


def test_a_view_s_name_is_its_own(tmp_path: Path) -> None:
    raw = copy.deepcopy(RAW)
    raw["views"]["A"] = raw["views"]["warm"]
    with pytest.raises(InvalidInputError, match=r"views\.A must differ from all queries; got: 'A'"):
        load_pipeline({**raw, "log": str(tmp_path)})


def test_a_view_that_must_have_windows_is_computed_in_each_query_that_reads_it(tmp_path: Path) -> None:
    raw = copy.deepcopy(RAW)
    raw["views"]["mean"] = {"cql": f"SELECT avg(v) AS v FROM readings {WINDOW}"}
    raw["queries"]["d"] = {"class": "bulk", "cql": "SELECT v FROM mean WHERE v > 1"}
    config = load_pipeline({**raw, "log": str(tmp_path)})
    decided = decide(config, "mean", lambda _: None)
    assert not decided.once
    assert "windows, groups" in decided.reason
