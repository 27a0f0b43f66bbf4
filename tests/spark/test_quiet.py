"""What a user sees on standard error when queries are stopped: nothing that looks like a failure."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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


@pytest.mark.spark
def test_stopping_queries_prints_no_traceback_and_what_users_code_says_is_there(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(root)!r})\n{STOPPING}",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "a line of users' code" in done.stderr
    # Spark itself may log the task that it killed, and the error of users' code: those have no such frames
    for frame in ("pyspark/daemon.py", "python_streaming_source_runner.py", "[Errno 32]"):
        assert frame not in done.stderr
    assert "BrokenPipeError: of users' code" in done.stdout


@pytest.mark.parametrize("error", [ValueError("wrong"), OSError("disk full"), SystemExit(3)])
def test_whatever_else_ends_a_worker_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(sock: socket.socket, authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(daemon, "_worker", fails)
    with socket.socket() as sock, pytest.raises(type(error)):
        daemon.quiet_worker(sock, True)


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_line_that_spark_has_closed_ends_a_worker(
    monkeypatch: pytest.MonkeyPatch, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(sock: socket.socket, authenticated: bool) -> int:
        raise error

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(daemon, "_worker", fails)
    monkeypatch.setattr(daemon.os, "_exit", leave)
    with socket.socket() as sock, pytest.raises(SystemExit, match="1"):
        daemon.quiet_worker(sock, True)
    assert capsys.readouterr().err == ""


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
