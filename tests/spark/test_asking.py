"""A source's line to the control plane: what it does while that is silent, and afterwards. No JVM."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.waits import PATIENCE_S, until

from penstock.config.flow import load_flow_config
from penstock.control.core.engine import Engine
from penstock.grants.grant import Grant
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL
from penstock.host.server import ControlServer, now
from penstock.spark.source.link import FIRST_ROWS, ControlLink
from penstock.spark.source.options import SourceOptions
from penstock.streams.embedded.log import EmbeddedLog
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

ENDS = {0: 50_000, 1: 50_000}


class Served:
    """A real control plane in a thread, which can be ended and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix://{folder}/c"
        self._thread: threading.Thread | None = None

    def start(self, slots: int = 1) -> Engine:
        classes = {"gold": {"target": "2s"}}
        config = load_flow_config({"log": self.folder, "classes": classes, "slots": slots})
        self.engine = Engine(config, now())
        ready = threading.Event()

        async def serve() -> None:
            self._server, self._loop = ControlServer(self.address, self.engine), asyncio.get_running_loop()
            running = asyncio.create_task(self._server.run())
            while not self._server.path.exists():
                await asyncio.sleep(0.001)
            ready.set()
            await running

        self._thread = threading.Thread(target=asyncio.run, args=(serve(),))
        self._thread.start()
        assert ready.wait(PATIENCE_S)
        return self.engine

    def end(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._server.stop)
            self._thread.join(PATIENCE_S)
            self._thread = None


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: a Unix socket's has 107 bytes."""
    return tmp_path_factory.mktemp("ask")


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    made = Served(folder)
    yield made
    made.end()


@pytest.fixture
def stream(folder: Path) -> Path:
    with EmbeddedLog.create(folder / "readings", pa.schema([("v", pa.int64())])) as log:
        log.append(pa.record_batch({"v": pa.array(range(1500), pa.int64())}))
    return folder / "readings"


def options(folder: Path, cls: str = "gold", fail_open_after_s: float = 5.0) -> SourceOptions:
    return SourceOptions(
        stream=str(folder / "readings"),
        read_from=str(folder / "readings"),
        query="fraud",
        cls=cls,
        address=f"unix://{folder}/c",
        fail_open_after_s=fail_open_after_s,
    )


def start(reader: str = "fraud-1", partitions: int = 2) -> Offset:
    return Offset.initial(reader, dict.fromkeys(range(partitions), 0))


def taken(given: Grant, offset: Offset) -> int:
    return sum(end - offset.end[p] for p, end in given.end.items())


def advanced(offset: Offset, given: Grant) -> Offset:
    return offset.advanced(given.end, given.late, given.plan, Books(taken(given, offset)), given.ungoverned)


def waiting_link(folder: Path, **others: float) -> tuple[ControlLink, ManualClock]:
    """A source whose waits only move a clock."""
    clock = ManualClock(1000.0)

    def pause(seconds: float) -> None:
        clock.advance(seconds)

    return ControlLink(options(folder, **others), clock, pause), clock  # type: ignore[arg-type]


def test_with_nobody_there_it_waits_five_seconds_and_then_goes_on_by_itself_in_small_steps(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, clock = waiting_link(folder)
    offset, began_s = start(), clock()
    while (given := link.ask(offset, ENDS)) is None:
        assert clock() - began_s < 6.0
    assert clock() - began_s >= 5.0
    for _ in range(20):
        assert given is not None
        assert given.ungoverned
        assert (given.plan, given.late) == (KEEP_ALL, {})
        assert FIRST_ROWS <= taken(given, offset) <= FIRST_ROWS + 1, "never everything at once"
        offset = advanced(offset, given)
        assert offset.ungoverned
        link.planned(offset, FIRST_ROWS)
        given = link.ask(offset, ENDS)
    assert offset.end == {0: 10_000, 1: 10_000}, "both partitions advance"
    said = [record for record in caplog.records if "goes on ungoverned" in record.getMessage()]
    assert len(said) == 1, "said once, not for every batch"
    assert said[0].levelno == logging.WARNING


def test_by_itself_it_goes_on_with_as_many_sources_as_its_last_grant_had(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, _ = waiting_link(folder)
    grant = {"end": {"0": 10, "1": 5}, "late": {}, "plan": KEEP_ALL.to_json(), "sources": 3}
    with monkeypatch.context() as answered:
        answered.setattr(link._client, "request", lambda *_: grant)
        first = link.ask(start(), ENDS)
    assert first is not None
    assert first.sources == 3
    while (alone := link.ask(advanced(start(), first), ENDS)) is None:
        pass
    assert alone.ungoverned
    assert alone.sources == 3, "a row's SIC does not rise because nobody answers"


def test_by_itself_it_stops_at_the_end_and_waits_there(folder: Path) -> None:
    link, clock = waiting_link(folder)
    offset = start()
    while (given := link.ask(offset, {0: 10, 1: 5})) is None:
        pass
    assert given.end == {0: 10, 1: 5}
    offset = advanced(offset, given)
    before = clock()
    assert link.ask(offset, {0: 10, 1: 5}) is None
    assert clock() > before, "without a pause Spark would ask in a hot loop"


def hanging(folder: Path, backlog: int) -> socket.socket:
    """A control plane that is there and says nothing, as a stopped process does."""
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    silent.bind(str(folder / "c"))
    silent.listen(backlog)
    return silent


@pytest.mark.parametrize("backlog", [100, 0], ids=["it takes connections", "it takes no more connections"])
def test_a_control_plane_that_hangs_is_left_behind_and_tried_again_each_time(
    folder: Path, backlog: int
) -> None:
    with hanging(folder, backlog):
        link = ControlLink(options(folder, fail_open_after_s=0.3))
        offset, batches = start(), 0
        while batches < 3:
            given = link.ask(offset, ENDS)
            if given is not None:
                assert given.ungoverned
                offset = advanced(offset, given)
                link.planned(offset, FIRST_ROWS)
                batches += 1
        assert taken(Grant(offset.end, {}, KEEP_ALL), start()) <= 3 * (FIRST_ROWS + 1)
        link.close()


@pytest.mark.parametrize(
    "answer", [b"{}", b'{"end": 5, "late": {}, "plan": {}}', b'{"end": {"0": "x"}, "late": {}}', b"nonsense"]
)
def test_answers_that_cannot_be_understood_are_as_good_as_none(folder: Path, answer: bytes) -> None:
    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as lines:
                for _ in lines:
                    lines.write(answer + b"\n")
                    lines.flush()

    with hanging(folder, 100) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        link, _ = waiting_link(folder, fail_open_after_s=0.3)
        while (given := link.ask(start(), ENDS)) is None:
            pass
        assert given.ungoverned
        link.planned(advanced(start(), given), FIRST_ROWS)
        link.close()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def test_it_gets_grants_loses_the_control_plane_goes_on_and_is_governed_again(
    served: Served, stream: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock.spark.source.link")
    served.start()
    link, _ = waiting_link(served.folder)
    offset = start(partitions=1)
    while (given := link.ask(offset, {0: 1500})) is None:
        pass
    assert not given.ungoverned
    assert given.end == {0: 1000}
    offset = advanced(offset, given)
    link.planned(offset, 1000)

    served.end()
    while (given := link.ask(offset, {0: 1500})) is None:
        pass
    assert given.ungoverned
    offset = advanced(offset, given)
    link.planned(offset, 500)
    assert offset.end == {0: 1500}

    engine = served.start()
    with EmbeddedLog(stream) as log:
        log.append(pa.record_batch({"v": [1, 2, 3]}))
    while (given := link.ask(offset, {0: 1503})) is None:
        pass
    assert not given.ungoverned
    assert given.end == {0: 1503}
    link.planned(advanced(offset, given), 3)
    assert engine.members.readers["fraud-1"].counted.books.admitted == 1503
    words = [record.getMessage() for record in caplog.records]
    assert sum("goes on ungoverned" in word for word in words) == 1
    assert sum("the control plane answers again" in word for word in words) == 1
    link.close()


def test_a_batch_that_takes_long_is_not_silence(served: Served, stream: Path) -> None:
    """The silence begins with a question that has no answer, not with the last answer."""
    served.start()
    link, clock = waiting_link(served.folder)
    offset = start(partitions=1)
    while (given := link.ask(offset, {0: 1500})) is None:
        pass
    offset = advanced(offset, given)
    link.planned(offset, 1000)
    clock.advance(3600.0)  # the batch
    served.end()
    began_s = clock()
    while (given := link.ask(offset, {0: 1500})) is None:
        pass
    assert clock() - began_s >= 5.0
    link.close()


def test_by_itself_it_takes_what_its_last_batch_really_admitted(folder: Path, stream: Path) -> None:
    link, _ = waiting_link(folder)
    governed = Offset("fraud-1", {0: 0, 1: 0}, {0: 90_000, 1: 90_000}, grant=1, books=Books(4000, 176_000))
    link.planned(governed, 4000)  # 180,000 rows were decided, most of them shed
    while (given := link.ask(governed, {0: 190_000, 1: 190_000})) is None:
        pass
    assert 4000 <= taken(given, governed) <= 4001
    small = Offset("fraud-1", governed.end, governed.end, grant=2, books=governed.books)
    link.planned(small, 3)
    given = link.ask(small, {0: 190_000, 1: 190_000})
    assert given is not None
    assert taken(given, small) >= FIRST_ROWS, "three rows a batch would never catch up"


def test_a_batch_that_is_run_again_waits_until_the_slot_is_free(served: Served, stream: Path) -> None:
    engine = served.start()
    holder, _ = waiting_link(served.folder)
    while holder.ask(start("fraud-1", 1), {0: 1500}) is None:
        pass
    replaying, _ = waiting_link(served.folder)
    replayed = Offset("fraud-2", {0: 0}, {0: 1500}, grant=3, books=Books(1500))
    done = threading.Event()

    def plan() -> None:
        replaying.planned(replayed, 1500)
        done.set()

    thread = threading.Thread(target=plan)
    thread.start()
    until(lambda: "fraud-2" in engine.members.readers, "its first word")
    assert not done.is_set(), "the slot is held"
    holder.close()
    assert done.wait(PATIENCE_S)
    thread.join()
    replaying.close()


def test_a_refusal_of_the_control_plane_reaches_the_query(served: Served, stream: Path) -> None:
    served.start()
    link = ControlLink(options(served.folder, cls="golden"))
    with pytest.raises(InvalidInputError, match="class must be one of gold; got: 'golden'"):
        link.ask(start(partitions=1), {0: 1500})
    link.close()


def test_a_wrong_address_is_said_at_once() -> None:
    with pytest.raises(InvalidInputError, match="a control plane's address is unix:///path; got: 'tcp://x'"):
        ControlLink(SourceOptions(stream="s", read_from="s", address="tcp://x"))


def test_a_planner_ends_when_its_driver_is_killed() -> None:
    """It would own its plan journal, and the driver that is started again could not."""
    planner = (
        "import os; driver = os.getppid()\n"
        "from penstock.spark.source import data_source; data_source.ORPHANED_S = 0.01\n"
        "print(os.getpid(), flush=True); data_source._end_with_driver(driver); print('it returned')"
    )
    driver = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {planner!r}]); print('too soon')"
    process = subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        pid = int(said.readline())
        os.kill(pid, 0)
        process.kill()
        process.wait()
        assert said.read() == "", "what it held is closed: the planner has ended"
