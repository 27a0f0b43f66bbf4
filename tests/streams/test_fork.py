"""A process that forks: the one that took a partition's lock appends, and the lock ends with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.segments import headers, read

from penstock.streams.embedded.log import EmbeddedLog
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("value", pa.int64())])

FORKS = """
import os, sys
import pyarrow as pa
from penstock.vocabulary.errors import InvalidInputError
from penstock.streams.embedded.log import EmbeddedLog

log = EmbeddedLog(sys.argv[1])
say = lambda line: os.write(1, (line + "\\n").encode())  # one write a line: two processes speak
gate = os.pipe()
rows = lambda *values: pa.record_batch([list(values)], schema=log.append_schema)
log.append(rows(0))
child = os.fork()
if child == 0:
    {child}
    say("child done")
    sys.stdin.readline()
    os._exit(0)
{parent}
say("parent done")
{then}
"""

APPENDS = """
    refused = "one writer? it appended"
    for value in range(100, 120):
        try:
            log.append(rows(value))
        except InvalidInputError as error:
            refused = str(error)
    say(refused)
    log.close()
"""


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([list(values)], schema=SCHEMA)


def values_in(log: EmbeddedLog) -> list[int]:
    return [v for s in headers(log, 0, 0, log.end()) for v in read(log, s).column("value").to_pylist()]


class Forked:
    """A process that appended a row and forked; both have done their part when this returns."""

    def __init__(
        self, directory: Path, child: str = "pass", parent: str = "pass", then: str = "pass"
    ) -> None:
        EmbeddedLog.create(directory, SCHEMA)
        script = FORKS.format(child=child.strip(), parent=parent, then=then)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said: list[str] = []
        while not {"parent done\n", "child done\n"} <= set(self.said):
            line = self.process.stdout.readline()
            assert line, "it ended"
            self.said.append(line)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate("\n" * 2, timeout=60)


def test_a_forked_process_is_refused_and_its_parent_appends_on(tmp_path: Path) -> None:
    parent = "for value in range(1, 30): log.append(rows(value))"
    with Forked(tmp_path / "s", APPENDS, parent, "sys.stdin.readline()") as forked:
        refused = next(line for line in forked.said if "one writer" in line)
        assert f"held by process {forked.process.pid}, from which this one was forked; hint: open" in refused
        with pytest.raises(InvalidInputError, match=f"is held by process {forked.process.pid};"):
            EmbeddedLog(tmp_path / "s").append(rows(7))  # the child's close gave nothing back
    log = EmbeddedLog(tmp_path / "s")
    assert values_in(log) == list(range(30))
    assert log.header_arrays(0, 0, 30).first_position.tolist() == list(range(30))


@pytest.mark.briefly("dies")
@pytest.mark.parametrize(
    ("parent", "then"),
    [
        pytest.param("log.close()", "sys.stdin.readline()", id="closes"),
        pytest.param("pass", "os._exit(0)", id="dies"),
    ],
)
def test_the_lock_ends_with_its_holder_while_a_forked_process_lives(
    tmp_path: Path, parent: str, then: str
) -> None:
    with Forked(tmp_path / "s", "pass", parent, then) as forked:
        if then == "os._exit(0)":
            assert forked.process.wait(60) == 0
        with EmbeddedLog(tmp_path / "s") as log:
            assert log.append(rows(1)) == 2
    assert values_in(log) == [0, 1]


def test_a_forked_process_may_append_once_its_parent_is_done(tmp_path: Path) -> None:
    child = "os.read(gate[0], 1); log = EmbeddedLog(sys.argv[1]); log.append(rows(5)); log.close()"
    with Forked(tmp_path / "s", child, "log.close(); os.write(gate[1], b'x')"):
        assert values_in(EmbeddedLog(tmp_path / "s")) == [0, 5]
