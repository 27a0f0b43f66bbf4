"""The embedded stream log: what is appended is read back, whatever happens in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import tries
from tests.segments import headers, read

from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.hashing import key_buckets
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import AppendKey
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("sensor", pa.string()), ("value", pa.float64())])
SMALL = LogConfig(segment_rows=4, file_bytes=2000)


def rows(*values: float) -> pa.RecordBatch:
    return pa.record_batch([[f"s{int(v) % 3}" for v in values], list(map(float, values))], schema=SCHEMA)


def values_in(log: EmbeddedLog, partition: int = 0, start: int = 0) -> list[float]:
    segments = headers(log, partition, start, log.end(partition))
    return [v for s in segments for v in read(log, s).column("value").to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    return EmbeddedLog.create(tmp_path / "readings", SCHEMA, SMALL, clock=ManualClock(100.0))


def test_rows_are_read_back_in_order_with_their_arrival(log: EmbeddedLog) -> None:
    assert log.append(rows(1, 2, 3)) == 3
    assert log.append(rows(*range(4, 14))) == 13
    assert values_in(log) == [float(v) for v in range(1, 14)]
    first = read(log, headers(log, 0, 0, 1)[0])
    assert first.column("_arrival").to_pylist() == [100_000_000] * 3
    assert first.schema.names == ["sensor", "value", "_arrival"]


def test_headers_tell_positions_and_arrivals_without_reading_rows(log: EmbeddedLog) -> None:
    log.append(rows(*range(6)), arrival_us=np.array([1, 2, 3, 4, 5, 9]) * 1_000_000)
    one, two = headers(log, 0, 0, 6)
    assert (one.first_position, one.rows, one.end_position) == (0, 4, 4)
    assert (two.arrival_min_us, two.arrival_max_us) == (5_000_000, 9_000_000)
    assert [s.first_position for s in headers(log, 0, 3, 4)] == [0]
    assert [s.first_position for s in headers(log, 0, 4, 5)] == [4]
    assert headers(log, 0, 6, 9) == []


def test_a_repeated_batch_is_appended_once(log: EmbeddedLog) -> None:
    key = AppendKey("job", 7)
    assert log.append(rows(1, 2), key=key) == 2
    assert log.append(rows(1, 2), key=key) == 2
    assert log.append(rows(3), key=AppendKey("job", 6)) == 2
    assert log.append(rows(3), key=AppendKey("other", 0)) == 3
    log.close()
    again = EmbeddedLog(log.directory)
    assert again.append(rows(1, 2), key=key) == 3
    assert again.append(rows(4), key=AppendKey("job", 8)) == 4


def test_arrival_never_goes_back_even_if_the_clock_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(50.0)
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, clock=clock)
    log.append(rows(1))
    log.append(rows(2), arrival_us=np.array([20_000_000]))
    log.clock = lambda: 40.0
    log.append(rows(3))
    assert [s.arrival_min_us for s in headers(log, 0, 0, 3)] == [50_000_000] * 3
    assert "clock went back by 10000000 us" in caplog.text


def test_rows_that_are_stamped_in_the_future_arrive_now_and_later_rows_keep_their_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(50.0)
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(partitions=2), clock=clock)
    log.append(rows(1, 2), arrival_us=np.array([49_000_000, 3_650_000_000]))
    clock.advance(1.0)
    log.append(rows(3), arrival_us=np.array([3_651_000_000]))
    log.append(rows(4), partition=1, arrival_us=np.array([3_651_000_000]))
    clock.advance(1.0)
    log.append(rows(5))
    arrived = [us for s in headers(log, 0, 0, 4) for us in read(log, s).column("_arrival").to_pylist()]
    assert arrived == [49_000_000, 50_000_000, 51_000_000, 52_000_000]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, "not with every append"
    assert said[0].startswith("s: rows are stamped up to 3600000000 us in the future; they count as arrived")


def test_a_clock_that_went_back_is_said_once_a_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        log = EmbeddedLog.create(tmp_path / name, SCHEMA, LogConfig(partitions=2), clock=ManualClock(50.0))
        for partition in (0, 1):
            log.append(rows(1), partition)
        log.clock = lambda: 40.0
        for value in range(10):
            log.append(rows(value), value % 2)
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(" by ")[0] for text in said] == [
        "a: the clock went back",
        "b: the clock went back",
    ]


def test_rows_of_a_shared_stream_keep_the_arrival_of_their_origin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LogConfig(origin=True)
    log = EmbeddedLog.create(tmp_path / "hot", SCHEMA, config, clock=ManualClock(50.0))
    origin = [[0.5, 0.5], [1.0, 1.0], [1.0, 1.0]]
    kept = pa.record_batch([["a", "b"], [1.0, 2.0], *origin], schema=log.append_schema)
    log.append(kept, arrival_us=np.array([47_000_000, 49_500_000]))
    assert read(log, headers(log, 0, 0, 2)[0]).column("_arrival").to_pylist() == [47_000_000, 49_500_000]
    assert caplog.text == ""


def test_keys_are_counted_by_bucket_in_the_header(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(key="sensor", key_buckets=8))
    log.append(rows(*range(9)))
    counts = headers(log, 0, 0, 9)[0].key_counts
    buckets = key_buckets(read(log, headers(log, 0, 0, 9)[0]).column("sensor"), 8)
    assert sum(counts) == 9
    assert list(counts) == np.bincount(buckets, minlength=8).tolist()


def test_partitions_are_independent(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(partitions=2))
    log.append(rows(1), partition=0)
    log.append(rows(2, 3), partition=1)
    assert (log.end(0), log.end(1)) == (1, 2)
    assert values_in(log, 1) == [2.0, 3.0]
    with pytest.raises(InvalidInputError, match="partitions 0 to 1; got: 2"):
        log.end(2)


def test_a_reader_follows_a_writer_in_another_object(log: EmbeddedLog) -> None:
    reader = EmbeddedLog(log.directory)
    assert reader.end() == 0
    for v in range(20):
        log.append(rows(v))
        assert reader.end() == v + 1
    assert values_in(reader) == [float(v) for v in range(20)]


def test_trimming_forgets_whole_files_and_says_so_to_a_late_reader(log: EmbeddedLog) -> None:
    for v in range(40):
        log.append(rows(v))
    old = headers(log, 0, 0, 1)[0]
    first = log.trim(0, 30)
    assert 0 < first <= 30
    assert log.start() == first
    assert values_in(log, start=first)[0] == float(first)
    assert EmbeddedLog(log.directory).start() == first
    with pytest.raises(InvalidInputError, match="still in the log; got: readings, partition 0, position 0"):
        read(log, old)
    assert log.trim(0, 5) == first
    assert log.append(rows(99)) == 41


def test_a_deleted_data_file_is_named(log: EmbeddedLog) -> None:
    log.append(rows(1))
    next(log.directory.glob("p0000/*.data")).unlink()
    with pytest.raises(InvalidInputError, match=r"0\.data is missing"):
        read(log, headers(log, 0, 0, 1)[0])


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        pytest.param({"sensor": ["a"]}, r"missing \['value'\]", id="a_missing_column"),
        pytest.param({"sensor": ["a"], "value": [1.0], "x": [1]}, r"unknown \['x'\]", id="an_unknown_column"),
        pytest.param({"sensor": ["a"], "value": [1]}, "value is int64, not double", id="another_type"),
        pytest.param({"value": [1.0], "sensor": ["a"]}, "another order", id="another_order"),
    ],
)
def test_rows_with_other_columns_are_refused_and_nothing_is_appended(
    log: EmbeddedLog, batch: dict[str, list], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        log.append(pa.RecordBatch.from_pydict(batch))
    assert log.end() == 0


def test_a_stream_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="name of a metadata column; got: '_Weight'"):
        EmbeddedLog.create(tmp_path / "cased", pa.schema([("_Weight", pa.int64())]))
    with pytest.raises(InvalidInputError, match="name of a metadata column; got: '_sic'"):
        EmbeddedLog.create(tmp_path / "s", pa.schema([("_sic", pa.float64())]))
    with pytest.raises(InvalidInputError, match="key is a column of the stream; got: 'nope'"):
        EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(key="nope"))
    with pytest.raises(InvalidInputError, match="at least one column"):
        EmbeddedLog.create(tmp_path / "s", pa.schema([]))
    with pytest.raises(InvalidInputError, match="partitions must be at least 1"):
        LogConfig(partitions=0)
    with pytest.raises(InvalidInputError, match="no stream at 'nothing'"):
        EmbeddedLog(tmp_path / "nothing")
    EmbeddedLog.create(tmp_path / "s", SCHEMA)
    with pytest.raises(InvalidInputError, match="created once; got: 's' exists"):
        EmbeddedLog.create(tmp_path / "s", SCHEMA)
    (tmp_path / "s" / "stream.json").write_text('{"format": 9}')
    with pytest.raises(InvalidInputError, match="format 1; got: 9"):
        EmbeddedLog(tmp_path / "s")


def test_a_key_or_a_stamp_that_cannot_be_is_refused(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidInputError, match="1 to 40 bytes"):
        AppendKey("x" * 41, 0)
    with pytest.raises(InvalidInputError, match="0 or more; got: -1"):
        AppendKey("x", -1)
    with pytest.raises(InvalidInputError, match="one arrival time a row; got: 1 arrival times for 2 rows"):
        log.append(rows(1, 2), arrival_us=np.array([1]))


def test_a_partition_has_one_writer_process(log: EmbeddedLog) -> None:
    log.append(rows(1))
    other = EmbeddedLog(log.directory)
    with pytest.raises(InvalidInputError, match=f"held by process {os.getpid()}"):
        other.append(rows(2))
    log.close()
    assert other.append(rows(2)) == 2


APPEND_TO_A_FULL_DISK = """
import resource, sys, pyarrow as pa
from penstock.vocabulary.errors import PenstockError
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.protocol import AppendKey
log = EmbeddedLog(sys.argv[1])
def rows(count):
    values = [float(i) for i in range(count)]
    return pa.record_batch([["k"] * count, values], schema=log.user_schema)
log.append(rows(1))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
try:
    log.append(rows(3000), key=AppendKey("job", 1))
except PenstockError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(log.end(), EmbeddedLog(sys.argv[1]).end(), log.append(rows(2), key=AppendKey("job", 1)))
"""


@pytest.mark.briefly("1000")
@pytest.mark.parametrize("limit_bytes", [1_000, 5_000, 60_000])
def test_a_disk_that_fills_up_leaves_nothing_half_written(tmp_path: Path, limit_bytes: int) -> None:
    """A limit on file sizes makes real writes fail in the middle, in the data file or in the index."""
    log = EmbeddedLog.create(tmp_path / "readings", SCHEMA, LogConfig(segment_rows=4, file_bytes=10_000_000))
    ran = subprocess.run(
        [sys.executable, "-c", APPEND_TO_A_FULL_DISK, str(log.directory), str(limit_bytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    said, ends = ran.stdout.splitlines()
    assert said == (
        "expected: an append is written whole; got: File too large on readings; "
        "hint: nothing was appended, free some space and try again"
    )
    assert ends == "1 1 3"
    assert values_in(log) == [0.0, 0.0, 1.0]


def cut_off(path: Path, count: int) -> None:
    os.truncate(path, path.stat().st_size - count)


@pytest.mark.parametrize("cut", [1, 40, 130, 400])
def test_a_torn_tail_is_cut_off_and_said(
    log: EmbeddedLog, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    log.append(rows(1, 2))
    data = next(log.directory.glob("p0000/*.data"))
    first_bytes = data.stat().st_size
    log.append(rows(*range(3, 13)))
    log.close()
    cut_off(log.directory / "p0000" / "index", cut)
    os.truncate(data, first_bytes + 100)  # not even the first segment is whole
    again = EmbeddedLog(log.directory)
    assert again.end() == 2
    assert again.append(rows(50)) == 3
    assert values_in(again) == [1.0, 2.0, 50.0]
    assert "of an unfinished append" in caplog.text
    assert "no index record" not in caplog.text


@pytest.mark.parametrize("cut", [1, 40, 130, 400])
def test_whole_rows_without_an_index_record_are_said_to_be_perhaps_acknowledged(
    log: EmbeddedLog, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    log.append(rows(1, 2))
    data = next(log.directory.glob("p0000/*.data"))
    first_bytes = data.stat().st_size
    log.append(rows(*range(3, 13)))
    log.close()
    whole_bytes = data.stat().st_size - first_bytes
    index = log.directory / "p0000" / "index"
    cut_off(index, cut)
    with data.open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x10")  # and the first bytes of one more segment
    again = EmbeddedLog(log.directory)
    assert again.append(rows(50)) == 3
    assert values_in(again) == [1.0, 2.0, 50.0]
    assert f"segments of rows ({whole_bytes} bytes) have no index record" in caplog.text
    assert "acknowledged appends are lost" in caplog.text
    assert "unfinished" not in caplog.text


@pytest.mark.parametrize("error", [OSError("out of memory"), pa.ArrowInvalid("cannot be mapped")])
def test_a_file_that_cannot_be_mapped_is_recovered_all_the_same(
    log: EmbeddedLog, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(path: str) -> None:
        raise error

    log.append(rows(1, 2))
    log.append(rows(*range(3, 13)))
    log.close()
    cut_off(log.directory / "p0000" / "index", 1)
    again = EmbeddedLog(log.directory)
    with monkeypatch.context() as failing:
        failing.setattr(pa, "memory_map", fails)
        assert again.append(rows(50)) == 3
    assert values_in(again) == [1.0, 2.0, 50.0]
    assert "of an unfinished append" in caplog.text


def test_rows_in_a_file_that_the_index_does_not_know_have_no_index_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(file_bytes=1)) as log:
        for value in range(4):
            log.append(rows(value))
    folder = tmp_path / "s" / "p0000"
    cut_off(folder / "index", (folder / "index").stat().st_size // 2)
    with EmbeddedLog(tmp_path / "s") as log:
        log.append(rows(9))
        assert values_in(log) == [0.0, 1.0, 9.0]
    assert "2 segments of rows" in caplog.text


@pytest.mark.parametrize(
    "left", [b"\0" * 300, b"\xff" * 300, b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 40, b"rows" * 80]
)
def test_bytes_that_are_no_rows_are_an_unfinished_append(
    log: EmbeddedLog, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    log.append(rows(1, 2))
    log.close()
    with next(log.directory.glob("p0000/*.data")).open("ab") as file:
        file.write(left)
    again = EmbeddedLog(log.directory)
    again.append(rows(50))
    assert values_in(again) == [1.0, 2.0, 50.0]
    assert f"cut {len(left)} bytes of an unfinished append" in caplog.text


def test_data_that_a_power_cut_lost_is_found_out(log: EmbeddedLog) -> None:
    log.append(rows(1, 2))
    log.append(rows(3, 4))
    log.close()
    data = next(log.directory.glob("p0000/*.data"))
    os.truncate(data, data.stat().st_size - 8)
    again = EmbeddedLog(log.directory)
    assert again.append(rows(50)) == 3
    assert values_in(again) == [1.0, 2.0, 50.0]


@given(
    batches=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    segment_rows=st.integers(1, 9),
    file_bytes=st.integers(1, 5000),
    reopen=st.sets(st.integers(0, 11)),
)
@settings(max_examples=40, derandomize=True)
def test_every_row_appended_is_there_once(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[int],
    segment_rows: int,
    file_bytes: int,
    reopen: set[int],
) -> None:
    config = LogConfig(segment_rows=segment_rows, file_bytes=file_bytes)
    log = EmbeddedLog.create(tmp_path_factory.mktemp("log") / "s", SCHEMA, config)
    written: list[float] = []
    for i, size in enumerate(batches):
        values = [float(len(written) + k) for k in range(size)]
        assert log.append(rows(*values), key=AppendKey("w", i)) == len(written) + size
        written += values
        if i in reopen:
            log.close()
            log = EmbeddedLog(log.directory)
            assert log.append(rows(*values), key=AppendKey("w", i)) == len(written)
    assert values_in(log) == written
    assert [s.first_position for s in headers(log, 0, 0, log.end())] == sorted(
        {s.first_position for s in headers(log, 0, 0, log.end())}
    )


APPEND_FOREVER = """
import sys, pyarrow as pa
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.protocol import AppendKey
log = EmbeddedLog(sys.argv[1])
batch = int(sys.argv[2])
while True:
    first = batch * 10
    rows = pa.record_batch([["k"] * 10, [float(first + i) for i in range(10)]], schema=log.user_schema)
    log.append(rows, key=AppendKey("w", batch))
    batch += 1
    print(batch, flush=True)
"""


def test_a_writer_killed_at_random_moments_loses_and_repeats_nothing_it_confirmed(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(segment_rows=3, file_bytes=20_000))
    confirmed = 0
    for kill in range(tries(3, 6)):
        # starts one batch before the last confirmed one: the repeat must be a no-op
        process = subprocess.Popen(
            [sys.executable, "-c", APPEND_FOREVER, str(log.directory), str(max(0, confirmed - 1))],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(5 + 17 * kill):
            confirmed = max(confirmed, int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        confirmed = max([confirmed, *(int(line) for line in process.stdout.read().split())])
        process.wait()
        process.stdout.close()
    with EmbeddedLog(log.directory) as after:
        after.append(rows(-1))
        found = values_in(after)[:-1]
    assert len(found) >= confirmed * 10
    assert found == [float(v) for v in range(len(found))]


WORDS = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(WORDS, id="a_dictionary"),
        pytest.param(pa.list_(WORDS), id="in_a_list"),
        pytest.param(pa.large_list(pa.list_(WORDS, 2)), id="in_lists_of_lists"),
        pytest.param(pa.struct([("a", pa.int32()), ("b", WORDS)]), id="in_a_struct"),
        pytest.param(pa.map_(pa.string(), pa.struct([("b", WORDS)])), id="in_the_values_of_a_map"),
        pytest.param(pa.map_(WORDS, pa.int32()), id="in_the_keys_of_a_map"),
    ],
)
def test_a_column_with_a_dictionary_is_refused_because_it_could_not_be_read(
    tmp_path: Path, kind: pa.DataType
) -> None:
    schema = pa.schema([("value", pa.int64()), ("word", kind)])
    with pytest.raises(InvalidInputError, match=r"without a dictionary; got: word is .*; hint: cast it to"):
        EmbeddedLog.create(tmp_path / "s", schema)
    assert not (tmp_path / "s").exists()


def test_an_append_to_a_stream_that_was_created_with_a_dictionary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("word", WORDS)])
    monkeypatch.setattr("penstock.streams.embedded.log.check_schema", lambda *_: None)
    log = EmbeddedLog.create(tmp_path / "s", schema)
    with pytest.raises(InvalidInputError, match="without a dictionary; got: word is dictionary"):
        log.append(pa.record_batch([pa.array(["a"]).dictionary_encode()], schema=schema))
    assert log.end() == 0


def test_a_writers_name_with_a_nul_is_refused_because_the_index_would_drop_it() -> None:
    for name in ("w\0", "\0", "a\0b"):
        with pytest.raises(InvalidInputError, match="a writer's name has no NUL character"):
            AppendKey(name, 0)


def test_a_file_of_another_name_in_a_partition_is_left_alone(log: EmbeddedLog) -> None:
    for v in range(40):
        log.append(rows(v))
    log.close()
    strays = [log.directory / "p0000" / name for name in ("x.data", "12.data", "-0000000000000000001.data")]
    for stray in strays:
        stray.write_text("not the log's")
    with EmbeddedLog(log.directory) as again:
        assert again.append(rows(40)) == 41
        first = again.trim(0, 30)
        assert values_in(again, start=first) == [float(v) for v in range(first, 41)]
    assert all(stray.read_text() == "not the log's" for stray in strays)


def test_a_table_is_one_append_also_where_one_batch_could_not_hold_it(log: EmbeddedLog) -> None:
    table = pa.Table.from_batches([rows(0, 1, 2, 3, 4, 5), rows(), rows(6, 7)])
    assert log.append(table, key=AppendKey("job", 0), arrival_us=np.arange(8) * 1_000_000) == 8
    assert log.append(table, key=AppendKey("job", 0)) == 8
    assert values_in(log) == [float(v) for v in range(8)]
    segments = headers(log, 0, 0, 8)
    assert [(s.first_position, s.rows, s.arrival_min_us) for s in segments] == [
        (0, 4, 0),
        (4, 2, 4_000_000),
        (6, 2, 6_000_000),
    ]


def test_the_last_batch_is_known_without_the_index_where_the_log_appends(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(rows(1), key=AppendKey("job", 7))

    def whole_index(*_: object) -> None:
        raise AssertionError("the index was read")

    monkeypatch.setattr("penstock.streams.embedded.log.known_batches", whole_index)
    assert (log.last_batch("job"), log.last_batch("other")) == (7, -1)
    assert log.append(rows(2), key=AppendKey("other", 3)) == 2
    assert log.last_batch("other") == 3
