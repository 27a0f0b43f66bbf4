"""`spark/cluster`: two executors of a standalone cluster give what local mode gives."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from penstock.bench import BenchRun, bench
from penstock.grants.journal import read_journal
from penstock.spark.java import find_java
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.layout import LogConfig
from penstock.streams.opening import load_stream
from penstock.streams.paced.stream import create_paced
from penstock.streams.producing.schedule import schedule_constant

from .crash import planned_rows, sink_files
from .rig import pool_rows

ROWS = 400_000
FAST_PER_S = 1_500_000.0


@bench("cluster", title="a standalone cluster with two executors against local mode")
def cluster(run: BenchRun) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    run.progress("local mode", total=3)
    try:
        _make_streams(folder / "log")
        local = _drive(folder, "local", "local[2]")
        with _standalone(folder) as master:
            run.progress("cluster, shared directory", advance=1)
            shared = _drive(folder, "shared", master)
            run.progress("cluster, Flight", advance=1)
            server = FlightServer(folder / "log")
            try:
                flight = _drive(folder, "flight", master, server.address)
            finally:
                server.close()
        run.progress("comparing", advance=1)
        difference = 0
        for name, (place, executors) in {"shared directory": shared, "Flight": flight}.items():
            rows = _difference(_whole(local[0]), _whole(place))
            planned, found = _shed(folder, place)
            wrong = np.setxor1d(planned, found).size + (found.size - np.unique(found).size)
            difference += rows + int(wrong)
            run.note(
                f"{name}: {executors} executors, {found.size:,} rows of an overloaded query, {wrong} wrong"
            )
        planned, found = _shed(folder, local[0])
        difference += int(np.setxor1d(planned, found).size)
        run.row("difference_rows", difference)
        run.row("executors", min(shared[1], flight[1]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_streams(root: Path) -> None:
    """A stream that is all there, in three partitions, and one that is more than the cluster can process."""
    (rows,) = pool_rows(1, ROWS)
    stamps = 1_700_000_000_000_000 + np.arange(ROWS) * 50
    rows = rows.set_column(0, rows.schema.field("ts"), pa.array(stamps, pa.timestamp("us", tz="UTC")))
    with EmbeddedLog.create(root / "filled", rows.schema, LogConfig(partitions=3)) as log:
        for i in range(30):
            log.append(rows.slice(i * ROWS // 30, ROWS // 30), i % 3)
        last = pa.array([int(stamps[-1]) + 3_600_000_000], pa.timestamp("us", tz="UTC"))
        log.append(rows.slice(0, 1).set_column(0, rows.schema.field("ts"), last))
    create_paced(root / "fast", pool_rows(2), schedule_constant(FAST_PER_S, 120.0, 4096), event_time="ts")


def _drive(folder: Path, name: str, master: str, read_from: str = "") -> tuple[Path, int]:
    place = folder / name
    place.mkdir()
    driver = Path(__file__).with_name("cluster_driver.py")
    command = [sys.executable, str(driver), str(place), str(folder / "log"), master]
    done = subprocess.run(
        [*command, *([read_from] if read_from else [])],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the driver on {master} failed: {done.stderr[-3000:]}")
    executors = int((place / "executors").read_text())
    return place, executors if master.startswith("local") else executors - 1  # the driver is listed as well


@contextlib.contextmanager
def _standalone(folder: Path) -> Iterator[str]:
    """A master and two workers from the pip package, on free loopback ports."""
    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    java = find_java(dict(os.environ))
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOG_DIR": str(folder / "logs"),
    }
    master = f"spark://127.0.0.1:{port}"
    spark_class = str(home / "bin" / "spark-class")
    prefix = "org.apache.spark.deploy"
    commands = [
        [
            spark_class,
            f"{prefix}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        ]
    ]
    worker = [spark_class, f"{prefix}.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1100M"]
    commands += [[*worker, "--webui-port", "0", master]] * 2
    processes = []
    try:
        for command in commands:
            log = (folder / "cluster.log").open("a")
            processes.append(
                subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
            )
            if len(processes) == 1:
                _wait_for_port(port)
        _wait_for_workers(folder / "cluster.log", 2)
        yield master
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def _wait_for_port(port: int, patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)
    raise RuntimeError("the master does not listen")


def _wait_for_workers(log: Path, count: int, patience_s: float = 60.0) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if log.read_text().count("Successfully registered with master") >= count:
            return
        time.sleep(0.2)
    raise RuntimeError(f"the workers do not register: {log.read_text()[-1000:]}")


def _whole(place: Path) -> Counter[tuple]:
    tables = [pq.read_table(place / "whole" / name) for name in sink_files(place / "whole")]
    return Counter(
        row for table in tables for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
    )


def _difference(one: Counter[tuple], other: Counter[tuple]) -> int:
    return (one - other).total() + (other - one).total()


def _shed(folder: Path, place: Path) -> tuple[np.ndarray, np.ndarray]:
    """Positions that the recorded plans admit, and those in the results."""
    tables = [
        pq.read_table(place / "shed" / name, columns=["_position"]) for name in sink_files(place / "shed")
    ]
    found = np.concatenate([np.empty(0, np.int64), *(t.column(0).to_numpy() for t in tables)])
    reader = _reader_of(place / "cp-shed")
    journal = read_journal(folder / "log" / "fast" / "plans" / f"{reader}.jsonl")
    log = load_stream(folder / "log" / "fast")
    planned = planned_rows(log, [entry.offset for entry in journal.logged()])
    return planned.column("position").to_numpy(), found


def _reader_of(checkpoint: Path) -> str:
    """The reader's id, from Spark's own offset log."""
    import json

    entry = max(
        (p for p in (checkpoint / "offsets").iterdir() if p.name.isdigit()), key=lambda p: int(p.name)
    )
    return str(json.loads(entry.read_text().splitlines()[-1])["reader"])
