"""A governed source whose log lost rows that it has read: it is refused, and no row is skipped. No JVM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.grants.grant import Grant
from penstock.grants.offset import Books, Offset, limited
from penstock.grants.plans import KEEP_ALL
from penstock.spark.source.link import ControlLink
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planner import Planner
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("v", pa.int64())])


def append(log: EmbeddedLog, count: int) -> None:
    for p in range(log.partitions):
        log.append(pa.record_batch([list(range(count))], schema=SCHEMA), p)


def cut_off(folder: Path, data: bool, index: bool) -> None:
    """Takes the last three tenths of a partition, as a power cut may: of its data, its index, or both."""
    names = ["*.data"] * data + ["index"] * index
    for path in (found for name in names for found in folder.glob(name)):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 7 // 10])


@pytest.fixture(params=[1, 3], ids=["one_partition", "three_partitions"])
def stream(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A thousand rows a partition, in ten appends."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a planner sets its own
    with EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(partitions=request.param)) as log:
        for _ in range(10):
            append(log, 100)
    return tmp_path / "s"


def planner(stream: Path, asked: Callable[[Offset], Grant | None] | None = None) -> Planner:
    made = Planner(SourceOptions(str(stream), str(stream)))
    if asked is not None:

        class Told(ControlLink):
            """A line to a control plane that says what the test says."""

            def __init__(self) -> None:
                self.leads = True

            def ask(self, start: Offset, ends: object, take_all: bool = False) -> Grant | None:
                return asked(start)

            def close(self) -> None:
                pass

        made._link = Told()
    return made


def as_logged(offset: Offset) -> Offset:
    return Offset.from_json(offset.to_json())


def read_to_the_end(stream: Path) -> Offset:
    first = planner(stream)
    offset = first.next(first.initial())
    assert offset is not None
    first.tasks(offset)
    first.close()
    assert offset.books == Books(1000 * len(offset.end))
    return as_logged(offset)


LOSSES = [
    pytest.param(True, False, id="data_is_lost"),
    pytest.param(False, True, id="the_index_is_lost"),
    pytest.param(True, True, id="both_are_lost"),
]


@pytest.mark.parametrize(("data", "index"), LOSSES)
@pytest.mark.parametrize("rows", [1, 299, 300, 2000])
@pytest.mark.parametrize("governed", [False, True])
def test_a_reader_beyond_what_is_left_is_refused_whatever_was_appended_since(
    stream: Path, data: bool, index: bool, rows: int, governed: bool
) -> None:
    offset = read_to_the_end(stream)
    for p in offset.end:
        cut_off(stream / f"p{p:04d}", data, index)
    with EmbeddedLog(stream) as log:
        append(log, rows)
        ends = {p: log.end(p) for p in range(log.partitions)}
    again = planner(stream, (lambda _: Grant(ends, {}, KEEP_ALL)) if governed else None)
    with pytest.raises(
        InvalidInputError, match="still has the rows that this query has read; got: stream s, "
    ):
        again.next(offset)
    with pytest.raises(InvalidInputError, match=r"; hint: rows were lost .* a new checkpointLocation"):
        again.tasks(offset)  # Spark runs its last batch again
    again.close()


def test_a_reader_that_has_not_read_the_lost_rows_goes_on_and_its_books_are_exact(stream: Path) -> None:
    first = planner(stream, lambda start: Grant(dict.fromkeys(start.end, 650), {}, KEEP_ALL))
    offset = first.next(first.initial())
    assert offset is not None
    first.close()
    for p in offset.end:
        cut_off(stream / f"p{p:04d}", data=True, index=False)
    with EmbeddedLog(stream) as log:
        append(log, 500)
    last = planner(stream).next(as_logged(offset))
    assert last is not None
    count = len(offset.end)
    assert (last.end, last.books) == (dict.fromkeys(offset.end, 1200), Books(1200 * count))


def test_an_offset_of_format_1_goes_on_and_is_refused_beyond_the_end(stream: Path) -> None:
    offset = read_to_the_end(stream)
    old = {name: value for name, value in offset.to_json().items() if name != "marks"}
    old["penstock"] = 1
    with EmbeddedLog(stream) as log:
        append(log, 10)
    after = planner(stream).next(Offset.from_json(old))
    assert after is not None
    assert (after.to_json()["penstock"], set(after.marks)) == (2, set(offset.end))
    assert after.books == Books(1010 * len(offset.end))
    for p in offset.end:
        cut_off(stream / f"p{p:04d}", data=True, index=False)
    with EmbeddedLog(stream) as log:
        append(log, 1)
    with pytest.raises(InvalidInputError, match="the checkpoint is at position 1000, the log ends at"):
        planner(stream).next(Offset.from_json(old))


def test_a_source_that_goes_on_by_itself_never_goes_back() -> None:
    assert limited({0: 1000, 1: 5}, {0: 750, 1: 9}, None) == {0: 1000, 1: 9}
    assert limited({0: 1000, 1: 5}, {0: 750, 1: 9}, 2) == {0: 1000, 1: 7}
