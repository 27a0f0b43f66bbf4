"""`penstock run` and `penstock backfill` as a user types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.cli.test_cli_backfill import shed_pipeline
from tests.cli.test_cli_run import PIPELINE
from tests.segments import headers, read
from tests.spark.helpers import KeptSession
from tests.waits import PROCESS_S, until

from penstock.cli import main
from penstock.record.reading import read_run
from penstock.streams.embedded.log import EmbeddedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Ran:
    """A run that a signal has stopped, once all of its results had rows."""

    folder: Path
    out: str
    report: dict[str, Any]

    @property
    def run(self) -> Path:
        return Path(self.report["run"])


def joined_files(folder: Path) -> list[Path]:
    """Files of batches that Spark has completed; it may be writing others."""
    logs = (folder / "joined" / "_spark_metadata").glob("[0-9]*")
    entries = {line for log in logs for line in log.read_text().splitlines()[1:]}
    return sorted(folder / "joined" / Path(json.loads(entry)["path"]).name for entry in entries)


def read_joined(folder: Path) -> pa.Table:
    return ds.dataset(joined_files(folder), format="parquet").to_table(["device", "raised", "celsius"])


def has_results(folder: Path) -> bool:
    hot = folder / "log" / "hot" / "stream.json"
    there = hot.exists() and EmbeddedLog(hot.parent).end() and joined_files(folder)
    return bool(there and read_joined(folder).num_rows)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("command")
    (folder / "small.yaml").write_text(PIPELINE)
    words = [sys.executable, "-c", "import penstock.cli, sys; sys.exit(penstock.cli.main())", "run"]
    words += [str(folder / "small.yaml"), "--dry-run", "--json", str(folder / "report.json")]
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            [*words, "--set", "classes.gold.target=1s"], stdout=out, stderr=subprocess.STDOUT
        )

        def shows() -> str:
            assert process.poll() is None, (folder / "out").read_text()
            return (folder / "out").read_text()

        try:
            until(lambda: "waiting" in shows(), "its first status", patience_s=PROCESS_S)
            until(lambda: shows() and has_results(folder), "results", shows)
            process.send_signal(signal.SIGTERM)
            code = process.wait(PROCESS_S)
        finally:
            process.kill()
    said = (folder / "out").read_text()
    assert code == 0, said
    return Ran(folder, said, json.loads((folder / "report.json").read_text()))


@pytest.mark.spark
def test_a_pipeline_with_two_classes_and_a_join_runs_and_reports(ran: Ran) -> None:
    report = ran.report
    assert report["ok"]
    rows = {name: stream["rows"] for name, stream in report["streams"].items()}
    assert report["queries"]["find_hot"]["offered"] == rows["readings"]
    assert report["queries"]["alerts_with_readings"]["offered"] == rows["readings"] + rows["alerts"]
    for part in (*report["classes"].values(), *report["queries"].values()):
        assert part["offered"] == part["admitted"] + part["shed"] + part["waiting"]
    assert "find_hot: class gold, log sink, exactly once" in ran.out
    assert "p95" in ran.out


@pytest.mark.spark
def test_its_results_lie_where_its_sinks_say(ran: Ran) -> None:
    hot = EmbeddedLog(ran.folder / "log" / "hot")
    found = pa.Table.from_batches([read(hot, segment) for segment in headers(hot, 0, 0, hot.end())])
    assert 0 < found.num_rows <= ran.report["queries"]["find_hot"]["admitted"]
    assert min(found.column("celsius").to_pylist()) > 0.9
    assert read_joined(ran.folder).num_rows > 0
    assert all(path.name.endswith(".gz.parquet") for path in (ran.folder / "joined").glob("*.parquet"))


@pytest.mark.spark
def test_a_dry_run_sheds_nothing_and_a_setting_of_the_command_line_holds(ran: Ran) -> None:
    assert "gold (dry run)" in ran.out
    assert ran.report["classes"]["gold"]["target_s"] == 1.0
    assert [cls["shed"] for cls in ran.report["classes"].values()] == [0, 0]


@pytest.mark.spark
def test_its_record_lies_beside_the_file_and_is_replayed_with_the_same_decisions(ran: Ran) -> None:
    assert list((ran.folder / "runs").iterdir()) == [ran.run]
    assert ran.run.name.startswith("small-")
    recorded = read_run(ran.run)
    assert not recorded.truncated
    assert {observation.cls for observation in recorded.observations} == {"gold", "bulk"}
    assert main(["replay", str(ran.run)]) == 0


def test_a_windowed_query_of_a_pipeline_is_backfilled_by_the_command(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.spark.session.pipeline_session", lambda *_: KeptSession(spark))
    pipeline = shed_pipeline(tmp_path)
    assert main(["backfill", str(pipeline), "--query", "counts", "--json", "-"]) == 0
    shown = capsys.readouterr()
    (done,) = json.loads(shown.out)
    assert (done["rows"], done["windows"], done["result_rows"], done["left"]) == (100, 10, 20, 0)
    assert "100 rows run, 20 results to parquet" in shown.err
    found = ds.dataset(tmp_path / "results" / "counts-backfill", partitioning="hive").to_table()
    assert found["rows"].to_pylist() == [5] * 20
    assert set(found["revision"].to_pylist()) == {1}
