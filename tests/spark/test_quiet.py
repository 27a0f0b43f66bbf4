"""What a user sees on standard error when queries are stopped: nothing that looks like a failure."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.waits import ran

from penstock.spark import daemon
from penstock.spark.idle import end_planners_first

STOPPING = """
import os, sys, time
from pathlib import Path

import penstock
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.calibration.capacity import stop_quietly
from tests.spark.helpers import create, fill, until

folder = Path(sys.argv[1])
fill(create(folder / "readings"), range(1000))
spark = penstock.session(master="local[2]", memory="1g")


def waiting(batches):
    for batch in batches:
        print("a line of users' code", file=sys.stderr, flush=True)
        (folder / "pid").write_text(str(os.getpid()))
        while not (folder / "stopped").exists():
            time.sleep(0.01)
        yield batch


def broken(batches):
    raise BrokenPipeError("of users' code")


# inside a micro-batch: Spark closes the line, and the worker then writes its rows
frame = read_ungoverned(spark, folder / "readings").select("id").mapInArrow(waiting, "id long")
query = frame.writeStream.format("noop").start()
pid = until(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
stop_quietly(query)
(folder / "stopped").touch()
until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the worker")

# before the source's Python process has connected
with penstock.attach(spark, {"log": folder, "classes": {"gold": {"target": "2s"}}}) as flow:
    flow.read_stream("readings", cls="gold").writeStream.format("noop").start()

try:
    spark.range(1).mapInArrow(broken, "id long").collect()
except Exception as error:
    print(str(error))
spark.stop()
"""


def run_program(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return ran([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{program}", folder])


@pytest.mark.spark
def test_stopping_queries_prints_no_traceback_and_what_users_code_says_is_there(tmp_path: Path) -> None:
    done = run_program(STOPPING, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "a line of users' code" in done.stderr
    # Spark itself may log the task that it killed, and the error of users' code: those have no such frames
    for frame in ("pyspark/daemon.py", "python_streaming_source_runner.py", "[Errno 32]"):
        assert frame not in done.stderr
    assert "BrokenPipeError: of users' code" in done.stdout


@pytest.mark.parametrize("error", [ValueError("wrong"), OSError("disk full"), SystemExit(3)])
def test_whatever_else_ends_a_worker_is_passed_on(error: BaseException) -> None:
    def fails(sock: socket.socket, authenticated: bool) -> int:
        raise error

    with socket.socket() as sock, pytest.raises(type(error)):
        daemon.quiet(fails)(sock, True)


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_line_that_spark_has_closed_ends_a_worker(
    monkeypatch: pytest.MonkeyPatch, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(sock: socket.socket, authenticated: bool) -> int:
        raise error

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(daemon.os, "_exit", leave)
    with socket.socket() as sock, pytest.raises(SystemExit, match="1"):
        daemon.quiet(fails)(sock, True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("runs", "hushed"), [("pyspark.daemon", True), ("users_program", False), (None, False)]
)
def test_a_process_that_pysparks_daemon_forked_is_hushed_and_no_other(runs: str | None, hushed: bool) -> None:
    def worker(sock: socket.socket, authenticated: bool) -> int:
        return 0

    main: Any = ModuleType("__main__")
    main.__spec__, main.worker = None if runs is None else ModuleSpec(runs, None), worker
    daemon.hush(main)
    assert (main.worker is not worker) == hushed


def test_a_process_whose_main_module_has_no_spec_at_all_is_left_alone() -> None:
    main: Any = ModuleType("__main__")
    del main.__spec__
    daemon.hush(main)
    assert not hasattr(main, "worker")


IDLE = """
import sys
from pathlib import Path

import penstock
from penstock.spark.idle import planners
from tests.spark.helpers import begin, create, fill, until

folder = Path(sys.argv[1])
fill(create(folder / "readings"), range(1000))
spark = penstock.session(master="local[2]", memory="1g")
jvm = spark.sparkContext._gateway.proc.pid


def forks():
    ids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [child for child in ids if parent(child) in set(planners(jvm))]


def parent(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


with penstock.attach(spark, {"log": folder, "classes": {"gold": {"target": "2s"}}}) as flow:
    assert not list(planners(jvm)), "a planner that Spark needs once has ended"
    query = begin(flow.read_stream("readings", cls="gold").writeStream.format("noop").start)
    until(lambda: query.recentProgress, "a batch", query)
    flow.drain()
    query.stop()
assert len(forks()) >= 2, "planners are idle"
until(lambda: not forks(), "the end of planners that were idle for a minute")
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_planners_that_are_idle_for_a_minute_end_without_a_traceback(tmp_path: Path) -> None:
    done = run_program(IDLE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_session_whose_jvm_is_gone_is_still_stopped() -> None:
    stopped: list[bool] = []

    class Gone:
        @property
        def active(self) -> object:
            raise ConnectionError("the JVM is gone")

    context = SimpleNamespace(
        _gateway=SimpleNamespace(proc=SimpleNamespace(pid=0)), stop=lambda: stopped.append(True)
    )
    spark: Any = SimpleNamespace(sparkContext=context, streams=Gone())
    end_planners_first(spark)
    spark.sparkContext.stop()
    assert stopped == [True]
