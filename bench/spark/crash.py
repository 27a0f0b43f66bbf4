"""`spark/replay-crash`: a driver that is killed again and again leaves exactly what its plans say."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.bench import BenchRun, bench
from penstock.grants.journal import Journal, read_journal
from penstock.grants.offset import Offset
from penstock.grants.selection import read_range, select, split_among_tasks
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.opening import load_stream
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import schedule_constant

from .rig import pool_rows

KILLS, QUICK_KILLS = 20, 4
ROWS = pa.schema([("position", pa.int64()), ("k", pa.int64()), ("v", pa.float64())])
RATE_PER_S = 400_000.0
MOMENTS = ("any", "proposed", "control")
"""When to kill: at a random moment; as soon as a plan is in the journal, before Spark has logged it as an
offset; or first the control plane and some time later the driver."""


@bench("replay-crash", title="a driver killed with SIGKILL again and again: results against recorded plans")
def replay_crash(run: BenchRun) -> None:
    kills = QUICK_KILLS if run.quick else KILLS
    folder = Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    dice = random.Random(run.seed)
    run.progress("starting", total=kills + 1)
    try:
        create_paced(
            folder / "log" / "readings",
            pool_rows(),
            schedule_constant(RATE_PER_S, 3600.0, 4096),
            event_time="ts",
        ).begin()
        counts = dict.fromkeys(MOMENTS, 0)
        for i in range(kills):
            moment = MOMENTS[i % 4 % 3] if kills > 3 else "any"
            run.progress(f"kill {i + 1} of {kills}: {moment}", advance=1)
            counts[moment] += 1
            _run_and_kill(folder, moment, dice)
        run.progress("a last, clean run", advance=1)
        _finish(folder)
        _judge(run, folder, counts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, *words: str) -> subprocess.Popen[str]:
    driver = Path(__file__).with_name("crash_driver.py")
    return subprocess.Popen(
        [sys.executable, str(driver), str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=(folder / "driver.log").open("a"),
        text=True,
        start_new_session=True,
    )


def _run_and_kill(folder: Path, moment: str, dice: random.Random) -> None:
    driver = _start(folder)
    assert driver.stdout is not None
    line = driver.stdout.readline()
    if not line.startswith("running"):
        raise RuntimeError(f"the driver did not start: {(folder / 'driver.log').read_text()[-2000:]}")
    time.sleep(dice.uniform(1.0, 15.0))
    if moment == "control":
        os.kill(int(line.split()[1]), signal.SIGKILL)
        time.sleep(dice.uniform(0.5, 5.0))  # sources go on by themselves, or another control plane starts
    elif moment == "proposed":
        _wait_for_proposal(folder)
    _kill_group(driver)


def _wait_for_proposal(folder: Path) -> None:
    """Until a plan has just been written that Spark cannot have logged yet."""
    paths = list((folder / "log" / "readings" / "plans").glob("*.jsonl"))
    sizes = {path: path.stat().st_size for path in paths}
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        for path, size in sizes.items():
            now = path.stat().st_size
            if now > size:
                with path.open("rb") as file:
                    file.seek(size)
                    if b'{"proposed"' in file.read():
                        return
                sizes[path] = now
    raise RuntimeError("no plan was written in 10 s: nothing to be killed in between")


def _kill_group(driver: subprocess.Popen[str]) -> None:
    """Kills the driver with its JVM and waits until all are gone: a JVM may log one more offset."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    for _ in range(1000):
        try:
            os.killpg(driver.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def _finish(folder: Path) -> None:
    """A last run that ends cleanly: what Spark has logged is then complete."""
    driver = _start(folder, "8")
    driver.communicate(timeout=300)
    if driver.returncode:
        raise RuntimeError(f"the last driver failed: {(folder / 'driver.log').read_text()[-2000:]}")


def _judge(run: BenchRun, folder: Path, counts: dict[str, int]) -> None:
    log = load_stream(folder / "log" / "readings")
    missing = extra = difference = orphans = grants = ungoverned = 0
    shed = admitted = 0
    for query in ("files", "stream"):
        (path,) = (folder / "log" / "readings" / "plans").glob(f"{query}-*.jsonl")
        journal = read_journal(path)
        entries = journal.logged()
        offsets = [entry.offset for entry in entries]
        found = _parquet(folder) if query == "files" else _stream(folder)
        lacking, surplus = differences(planned_rows(log, offsets), found)
        missing, extra = missing + lacking, extra + surplus
        last = offsets[-1]
        end = log.end(0)  # the stream goes on
        waiting = end - last.end[0]
        difference += abs(end - (found.num_rows + last.books.shed + waiting))
        difference += abs(last.end[0] - last.books.offered)
        admitted, shed = admitted + last.books.admitted, shed + last.books.shed
        grants += len(offsets)
        ungoverned += sum(offset.ungoverned for offset in offsets)
        orphans += _orphans(path, journal)
    run.row("kills", sum(counts.values()))
    run.row("missing_rows", missing)
    run.row("extra_rows", extra)
    run.row("accounting_difference", difference)
    run.row("orphans", orphans)
    run.note(
        f"kills: {counts['any']} at any moment, {counts['proposed']} between plan and offset commit, "
        f"{counts['control']} of the control plane and then the driver; {grants} grants, {orphans} orphans, "
        f"{ungoverned} grants ungoverned, {admitted} rows admitted, {shed} shed"
    )


def planned_rows(log: EmbeddedLog | PacedLog, offsets: list[Offset]) -> pa.Table:
    """What the recorded plans admit, computed offline: position, k and v."""
    found = [ROWS.empty_table()]
    for offset in offsets:
        for share in split_among_tasks(select(log, offset), 0, 1, 1):
            for stretch in share:
                for piece in read_range(log, offset.plan, stretch):
                    columns = [pa.array(piece.positions), piece.rows.column("k"), piece.rows.column("v")]
                    found.append(pa.table(columns, schema=ROWS))
    return pa.concat_tables(found)


def differences(planned: pa.Table, found: pa.Table) -> tuple[int, int]:
    """Planned rows that were not found, and found rows that were not planned or are there twice.

    A row with another value than the one at its position is both.
    """
    wanted, got = (_ordered(table) for table in (planned, found))
    positions, first = np.unique(got[0], return_index=True)
    _, at_wanted, at_got = np.intersect1d(wanted[0], positions, assume_unique=True, return_indices=True)
    at_got = first[at_got]
    same = (wanted[1][at_wanted] == got[1][at_got]) & (wanted[2][at_wanted] == got[2][at_got])
    equal = int(same.sum())
    return wanted[0].size - equal, got[0].size - equal


def _ordered(table: pa.Table) -> list[np.ndarray]:
    columns = [table.column(name).to_numpy() for name in ROWS.names]
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def _parquet(folder: Path) -> pa.Table:
    names = sink_files(folder / "files")
    tables = [pq.read_table(folder / "files" / name, columns=["_position", "k", "v"]) for name in names]
    return pa.concat_tables(
        [ROWS.empty_table(), *(table.rename_columns(ROWS.names).cast(ROWS) for table in tables)]
    )


def sink_files(folder: Path) -> list[str]:
    """The committed files of Spark's parquet sink: its own log says which are."""
    names: set[str] = set()
    for entry in sorted((folder / "_spark_metadata").iterdir()):
        if not entry.name.startswith("."):
            lines = entry.read_text().splitlines()[1:]
            names |= {json.loads(line)["path"].rpartition("/")[2] for line in lines}
    return sorted(names)


def _stream(folder: Path) -> pa.Table:
    results = load_stream(folder / "log" / "results")
    headers = results.header_arrays(0, 0, results.end(0), keys=False)
    spans = zip(headers.first_position.tolist(), headers.end_position.tolist(), strict=True)
    batches = [results.read(0, *span).batch.select(ROWS.names) for span in spans]
    return pa.concat_tables([ROWS.empty_table(), *(pa.table(batch).cast(ROWS) for batch in batches)])


def _orphans(path: Path, journal: Journal) -> int:
    lines = path.read_bytes().count(b'{"proposed"')
    return lines - len(journal.logged())
