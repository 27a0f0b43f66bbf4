"""`run_pipeline` on the tests' session: failures that stay with their query, refusals that start nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.spark.helpers import LONGEST_S, StopWhen, has_admitted
from tests.waits import PATIENCE_S

from penstock.pipeline.run.runner import failure, run_pipeline
from penstock.pipeline.spec.load import load_pipeline
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import PenstockError
from penstock.vocabulary.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = {"schema": {"n": "long", "at": "timestamp"}, "event_time": "at"}


def spec(tmp_path: Path, queries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pipeline on a stream of numbers, 2,000 a second."""
    classes = {"gold": {"target": "2s", "priority": 2}, "bulk": {"target": "10s"}}
    used = {query["class"] for query in queries.values()}
    return {
        "log": str(tmp_path / "log"),
        "classes": {name: cls for name, cls in classes.items() if name in used},
        "streams": {"numbers": NUMBERS | {"source": {"kind": "generator", "rate": 2000}}},
        "queries": queries,
        **more,
    }


def query(sql: str, **more: Any) -> dict[str, Any]:
    return {"class": "gold", "sql": sql, "sink": "memory", **more}


def run(
    spark: SparkSession, tmp_path: Path, raw: dict[str, Any], stop: StopWhen | None = None, **more: Any
) -> dict[str, Any]:
    """Runs a pipeline until a condition holds, then until nothing waits. Nothing of it is shed."""
    more = {"run": tmp_path / "run", "dry_run": True, "drain_s": PATIENCE_S, "on_status": stop, **more}
    return run_pipeline(load_pipeline(raw), LONGEST_S, spark=spark, **more)


@dataclass
class Ran:
    """A pipeline in which a query throws, and one reads the results of another."""

    report: dict[str, Any]
    folder: Path
    notes: list[str]
    good: int
    """Rows of one result."""
    counted: int


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    (folder / "my_queries.py").write_text(
        "def tenths(spark, streams):\n    return streams['numbers'].where('n % 10 = 0').select('n')\n"
    )
    queries = {
        "good": query("SELECT n FROM numbers WHERE n % 2 = 0"),
        "bad": query("SELECT raise_error('a bad row') AS x FROM numbers", **{"class": "bulk"}),
        "count_tenths": query("SELECT count(*) AS found FROM tenths", mode="complete"),
        "find_tenths": {
            "class": "bulk",
            "function": "my_queries:tenths",
            "streams": ["numbers"],
            "sink": {"kind": "log", "stream": "tenths"},
            "shuffle_partitions": 1,
        },
    }
    raw = spec(folder, queries)
    raw["streams"]["tenths"] = {}  # created with the result's columns
    notes: list[str] = []
    enough = has_admitted(100, "good", "count_tenths")
    stop = StopWhen(lambda status: enough(status) and any("query bad" in note for note in notes))
    report = run(spark, folder, raw, stop, on_note=notes.append, base=folder)
    sys.modules.pop("my_queries")
    assert spark.streams.active == []
    counted = spark.table("count_tenths").first()["found"]
    return Ran(report, folder, notes, spark.table("good").count(), counted)


def test_a_query_that_throws_is_reported_and_the_others_go_on(ran: Ran) -> None:
    report = ran.report
    assert not report["ok"]
    assert list(report["errors"]) == ["query bad"]
    assert "a bad row" in report["errors"]["query bad"]
    assert any(note.startswith("query bad failed: ") for note in ran.notes)
    assert "a bad row" in (ran.folder / "run" / "errors" / "bad.txt").read_text()
    good = report["queries"]["good"]
    assert good["error"] is None
    assert good["offered"] == good["admitted"] + good["shed"] + good["waiting"]
    assert good["offered"] == report["streams"]["numbers"]["rows"]
    assert ran.good > 0


def test_results_can_be_read_by_another_query_of_the_pipeline(ran: Ran) -> None:
    queries = ran.report["queries"]
    assert ran.report["drained"]
    rows = EmbeddedLog(ran.folder / "log" / "tenths").end()
    assert 0 < rows <= queries["find_tenths"]["admitted"]
    assert ran.counted == queries["count_tenths"]["admitted"]
    assert queries["count_tenths"]["offered"] == rows


def test_a_run_leaves_its_record_behind(ran: Ran) -> None:
    lines = (ran.folder / "run" / "measurements.jsonl").read_text().splitlines()
    assert {"at_s", "classes", "streams"} <= set(json.loads(lines[-1]))
    assert json.loads((ran.folder / "run" / "summary.json").read_text()) == ran.report
    assert json.loads((ran.folder / "run" / "pipeline.json").read_text())["streams"]["tenths"]


@pytest.mark.parametrize("kept", [False, True])
def test_readers_end_with_a_run_unless_their_checkpoints_are_kept(
    spark: SparkSession, tmp_path: Path, kept: bool
) -> None:
    more = {"checkpoints": str(tmp_path / "kept")} if kept else {}
    raw = spec(tmp_path, {"few": query("SELECT n FROM numbers", sink="noop")}, trim=True, **more)
    report = run(spark, tmp_path, raw, StopWhen(has_admitted(1, "few")))
    assert report["ok"]
    assert report["dropped"] == {}
    found = ReaderRegistry(EmbeddedLog(tmp_path / "log" / "numbers")).readers()
    assert len(found) == int(kept), "rows are kept for a query that goes on, and for no other"


def test_a_record_that_cannot_be_written_ends_and_the_queries_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    notes: list[str] = []
    raw = spec(tmp_path, {"count": query("SELECT count(*) AS found FROM numbers", mode="complete")})
    said_so = StopWhen(lambda _: any("measurements.jsonl" in note for note in notes))
    full = (tmp_path / "run" / "measurements.jsonl").mkdir  # as a full disk: every write fails
    report = run(spark, tmp_path, raw, said_so, on_note=notes.append, on_ready=full)
    assert report["ok"]
    assert report["drained"]
    assert report["queries"]["count"]["admitted"] > 0
    (said,) = [note for note in notes if "measurements.jsonl" in note]
    assert said.startswith("measurements.jsonl of the record ends here, the queries go on: ")
    assert [note for note in notes if note.startswith("control plane: unix://")]
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == report


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sql": "SELECT m FROM numbers"}, r"queries.q.sql gives a result; got: \[UNRESOLVED_COLUMN"),
        ({"sql": "SELEC n FROM numbers"}, r"queries.q.sql gives a result; got: \[PARSE_SYNTAX_ERROR"),
        (
            {"sql": "SELECT n, count(*) FROM numbers GROUP BY n"},
            r"queries.q can be started; got: .*STREAMING_OUTPUT_MODE",
        ),
        (
            {"sql": "SELECT n AS _weight FROM numbers", "sink": {"kind": "log", "stream": "out"}},
            "has no metadata columns; got: '_weight'",
        ),
        (
            {"sql": "SELECT n FROM numbers", "sink": {"kind": "log", "stream": "out"}},
            r"stream out has the stream's columns; got: missing \['m'\]; unknown \['n'\]",
        ),
        (
            {"sql": "SELECT n FROM numbers", "sink": {"kind": "parquet", "path": "{tmp}/old"}},
            "got: results of another run in .*old; hint: name another path, or set the query's checkpoint",
        ),
    ],
    ids=["column", "syntax", "mode", "metadata", "columns", "old_results"],
)
def test_a_query_that_cannot_run_is_one_line_and_nothing_of_the_pipeline_runs(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "old" / "_spark_metadata").mkdir(parents=True)
    raw = spec(tmp_path, {"fine": query("SELECT n FROM numbers"), "q": query("") | changes})
    raw["streams"]["out"] = {"schema": {"m": "long"}}
    raw = json.loads(json.dumps(raw).replace("{tmp}", str(tmp_path)))
    with pytest.raises(PenstockError, match=message) as refused:
        run(spark, tmp_path, raw)
    assert "\n" not in str(refused.value)
    assert spark.streams.active == []
    assert EmbeddedLog(tmp_path / "log" / "numbers").end() == 0
    with EmbeddedLog(tmp_path / "log" / "out") as out:  # its lock is free again
        assert out.append(pa.RecordBatch.from_pylist([], schema=out.user_schema)) == 0


def test_the_gist_of_a_failure_is_its_root() -> None:
    text = (
        "[STREAM_FAILED] Query terminated\n  File x\npyspark.errors.AnException: outer\nValueError: inner\n"
    )
    assert failure(text) == "ValueError: inner"
    assert failure("[STREAM_FAILED] Query terminated\n=== Plan ===") == "[STREAM_FAILED] Query terminated"


def cql(text: str, **more: Any) -> dict[str, Any]:
    return {"class": "gold", "cql": text, "sink": "memory", "shuffle_partitions": 1, **more}


SECOND = "[RANGE 1 SEC SLIDE 1 SEC]"


def test_queries_in_cql_are_governed_as_all_others(spark: SparkSession, tmp_path: Path) -> None:
    raw = spec(
        tmp_path,
        {
            "by_window": cql(f"SELECT count(*) AS found FROM numbers {SECOND}"),
            "estimated": cql(f"SELECT avg(n) AS mean FROM numbers {SECOND}", estimates=True),
            "newest": cql("SELECT a.n, b.n AS other FROM numbers [ROWS 1] a, numbers [ROWS 2] b"),
            "fours": cql("SELECT n + 1 AS m FROM numbers WHERE n % 4 = 0", answers="rows"),
        },
    )
    enough = has_admitted(5000, *raw["queries"])  # 2.5 s of event time
    report = run(spark, tmp_path, raw, StopWhen(enough))
    assert report["ok"], report["errors"]
    assert report["drained"]
    for query in report["queries"].values():
        assert query["offered"] == query["admitted"] + query["shed"] + query["waiting"]
    counted = spark.table("by_window").toPandas()
    assert len(counted) >= 1
    assert 0 < counted["found"].sum() <= report["queries"]["by_window"]["admitted"]
    assert counted["sic"].between(0.0, 1.0).all()
    assert (counted["sic"] == 1.0).all(), "nothing was shed"
    noted = [json.loads(line) for line in (tmp_path / "run" / "sic.jsonl").read_text().splitlines()]
    # of two lines with the same grants the later one holds
    known = {str(line["grants"]): line["batch"] for line in noted if line["query"] == "by_window"}
    assert known
    assert list(known.values()) == list(range(len(known)))
    estimated = spark.table("estimated")
    beside = [f"mean{part}" for part in ("", "_error", "_low", "_high")]
    assert estimated.columns == ["window_start", "window_end", *beside, "sic", "interval"]
    assert estimated.where("sic = 1").count() == estimated.count() >= 1
    newest = spark.table("newest")
    assert newest.agg({"_d": "sum"}).first()[0] == 2, "one of the last tuple, two of the last two"
    assert newest.where("_d > 0").count() > 100
    fours = spark.table("fours")
    assert fours.columns == ["m", "sic"]
    assert newest.columns == ["n", "other", "_t", "_d", "sic"]
    for answers in (fours, newest):
        assert answers.where("sic = 1").count() == answers.count()
    assert fours.where("m % 4 != 1").count() == 0
    assert 0 < report["queries"]["fours"]["selectivity"] < 0.5
    assert report["queries"]["by_window"]["selectivity"] < 0.01
    assert report["queries"]["by_window"]["silent"] == []
    assert report["queries"]["by_window"]["dropped_by_watermark"] == 0


def test_a_family_takes_a_query_of_its_file_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    def text(**rests: int) -> str:
        one = f"SELECT count(*) AS found, max(at) AS last FROM numbers {SECOND} WHERE n % 10 < {{}}"
        return ";".join(f"REGISTER QUERY {name} AS {one.format(rest)}" for name, rest in rests.items())

    def changed(status: Status) -> bool:
        """The file changes once there are rows; it is over when there are some more, and costs are known."""
        if not any(note.startswith("parts: most") for note in notes):
            if has_admitted(1000, "parts")(status):
                file.write_text(text(few=1, most=9))
            return False
        joined.append(status.classes["gold"].admitted)
        costs = [query.row_s for query in status.classes["gold"].queries.values()]
        return None not in costs and joined[-1] > joined[0] + 6000  # 3 s of event time

    file = tmp_path / "parts.cql"
    file.write_text(text(few=1, half=5))
    parts = {"class": "gold", "cql_file": str(file), "sink": "memory", "shuffle_partitions": 1}
    notes: list[str] = []
    joined: list[int] = []
    report = run(spark, tmp_path, spec(tmp_path, {"parts": parts}), StopWhen(changed), on_note=notes.append)
    assert report["ok"], report["errors"]
    assert "parts: most joined, half left; 2 queries from the next micro-batch on" in notes
    found = {row["query"] for row in spark.table("parts").select("query").distinct().collect()}
    assert {"few", "most"} <= found
    costs = report["queries"]["parts"]["family"]
    assert list(costs) == ["few", "most"]
    assert costs["few"]["selectivity"] == pytest.approx(0.1, abs=0.04)
    assert costs["most"]["row_s"] == pytest.approx(
        costs["few"]["row_s"] * costs["most"]["selectivity"] / costs["few"]["selectivity"]
    )
    whole = report["queries"]["parts"]
    assert sum(each["row_s"] for each in costs.values()) == pytest.approx(whole["row_s"])
    assert sum(each["fixed_s"] for each in costs.values()) == pytest.approx(whole["fixed_s"])


def test_a_view_is_computed_once_for_the_queries_that_read_it(spark: SparkSession, tmp_path: Path) -> None:
    raw = spec(
        tmp_path,
        {
            "tens": cql(f"SELECT count(*) AS found FROM few {SECOND}"),
            "largest": cql(f"SELECT max(n) AS n FROM few {SECOND}", **{"class": "bulk"}),
        },
        views={"few": {"cql": "SELECT n, at FROM numbers WHERE n % 10 = 0", "computed": "once"}},
    )
    notes: list[str] = []
    report = run(spark, tmp_path, raw, StopWhen(has_admitted(250, "tens", "largest")), on_note=notes.append)
    assert report["ok"], report["errors"]
    assert "view few is computed once: as it says" in notes
    queries = report["queries"]
    assert queries["few"]["class"] == "gold"
    assert 0 < queries["tens"]["offered"] < queries["few"]["offered"] / 5
    assert queries["tens"]["offered"] == queries["largest"]["offered"]
    assert 0 < spark.table("tens").agg({"found": "sum"}).first()[0] <= queries["tens"]["admitted"]
    assert spark.table("largest").where("n % 10 != 0").count() == 0
    assert 0 < queries["few"]["selectivity"] < 0.2
    assert spark.table("tens").where("sic != 1").count() == 0
