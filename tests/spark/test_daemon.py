"""The daemon that forks Python workers: what it imports for them, and when it must not."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark import daemon

LINUX = pytest.mark.skipif(not daemon._THREADS.is_dir(), reason="this system does not list threads")


def said(script: str, **environ: str) -> list[str]:
    """What a Python of its own prints; with the environment in which Spark starts its daemon."""
    environ = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(daemon.__file__).parents[2]), **environ}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@LINUX
def test_the_daemon_imports_what_workers_need_and_stays_a_process_of_one_thread() -> None:
    pytest.importorskip("pyspark")
    script = "import sys; from penstock.spark import daemon as d; print(d.preload(), *sys.modules)"
    one_thread, *modules = said(script)
    assert one_thread == "True"
    assert {"pandas", "pyarrow.lib", "numpy", "pyspark.worker", "penstock.spark.source.tasks"} <= set(modules)


def test_a_worker_whose_task_imports_more_is_frozen_again_and_collects_its_garbage_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(daemon.gc, "collect", lambda: done.append("collected"))
    monkeypatch.setattr(daemon.gc, "freeze", lambda: done.append("frozen"))
    modules = dict(daemon.sys.modules)
    monkeypatch.setattr(daemon.sys, "modules", modules)
    worker = daemon.quiet(lambda sock, authenticated: 0)
    here, there = socket.socketpair()
    with here, there:
        assert [worker(here, True), worker(here, True)] == [0, 0]
        assert done == ["collected", "frozen"], "nothing new was imported by the second task"
        modules["one_more"] = daemon
        worker(here, True)
    assert done == ["collected", "frozen"] * 2


@LINUX
def test_a_module_that_cannot_be_imported_is_left_to_the_worker_that_needs_it() -> None:
    assert said("from penstock.spark import daemon as d; print(d.preload(['json', 'no_such']))") == ["True"]


@LINUX
def test_a_daemon_that_got_threads_by_importing_begins_again_without(tmp_path: Path) -> None:
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    (tmp_path / "threads.py").write_text(threads)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from penstock.spark import daemon as d; "
    assert said(script + "print(d.preload(['threads']))") == ["False"]
    assert said(script + "print(d.preload(['threads']))", **{daemon.PRELOAD_VARIABLE: "0"}) == ["True"]


def test_it_begins_again_with_its_arguments_and_imports_nothing_then(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []
    monkeypatch.setenv(daemon.PRELOAD_VARIABLE, "1")
    monkeypatch.setattr(daemon.sys, "argv", ["daemon.py", "pyspark.worker"])
    monkeypatch.setattr(daemon.os, "execv", lambda path, words: begun.append([path, *words]))
    daemon.begin_again()
    python = sys.executable
    assert begun == [[python, python, "-m", "penstock.spark.daemon", "pyspark.worker"]]
    assert daemon.os.environ[daemon.PRELOAD_VARIABLE] == "0"
