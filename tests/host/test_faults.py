"""A control plane whose streams hang or fail, and whose clients do not read: nobody else waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.host.watched import Watched, made
from tests.waits import PATIENCE_S, until

from penstock.config.flow import load_flow_config
from penstock.control.backlog.row_values import Fetch, Look
from penstock.control.core.engine import Engine
from penstock.control.core.events import Event, Fetched
from penstock.control.core.instructions import FetchRows, Instruction
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL
from penstock.host.client import VERSION, ControlClient, ControlSilentError
from penstock.host.server import LINE_BYTES, ControlServer, now
from penstock.streams.flight.server import FlightServer
from penstock.streams.opening import open_stream
from penstock.streams.registry import ReaderRegistry

CLASSES = {"gold": {"target": "2s"}, "semantic": {"target": "2s", "shed": {"by": "utility", "utility": "v"}}}


class Served:
    """A control plane in a thread, whose streams are watched ones."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix://{folder}/c"
        self.logs: dict[str, Watched] = {}
        self.opens: dict[str, Callable[[], None]] = {}
        """By stream, what its opening does first."""
        config = {"log": folder, "classes": CLASSES, "slots": 8, "trim": True}
        self.engine = Engine(load_flow_config(config), now())
        self.clients: list[ControlClient] = []
        self._began = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))

    async def _serve(self) -> None:
        self.server, self.loop = ControlServer(self.address, self.engine), asyncio.get_running_loop()
        running = asyncio.ensure_future(self.server.run())
        while not self.server.path.exists():
            await asyncio.sleep(0.001)
        self._began.set()
        await running

    def start(self) -> None:
        self._thread.start()
        assert self._began.wait(PATIENCE_S)

    def end(self) -> None:
        for log in self.logs.values():
            log.free.set()
        for client in self.clients:
            client.close()
        self.loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(PATIENCE_S)
        for log in self.logs.values():
            log.log.close()

    def open(self, place: str) -> Watched:
        if place in self.opens:
            self.opens[place]()
        return self.logs[Path(place).name]

    def stream(self, name: str, rows: int = 0) -> Watched:
        log = self.logs[name] = made(self.folder, name)
        if rows:
            log.write(rows)
        return log

    def client(self) -> ControlClient:
        self.clients.append(ControlClient(self.address, PATIENCE_S))
        return self.clients[-1]

    def raw(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(PATIENCE_S)
        connection.connect(str(self.server.path))
        return connection


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("f"))
    monkeypatch.setattr("penstock.host.server.open_stream", found.open)
    monkeypatch.setattr("penstock.host.server.load_stream", found.open)
    monkeypatch.setattr("penstock.host.server.CHORES_S", 0.01)
    monkeypatch.setattr("penstock.host.server.EVERY_S", 0.0)
    monkeypatch.setattr("penstock.host.tailers.HUNG_S", 0.2)
    found.start()
    yield found
    found.end()


class Source:
    """A reader that asks and plans as a source does."""

    def __init__(self, served: Served, log: Watched, cls: str = "gold") -> None:
        self.client, self.log = served.client(), log
        self.offset = Offset.initial(log.name, {0: 0})
        names = {"query": log.name, "name": log.name, "slot": "", "token": log.name, "cls": cls}
        self.hello = {"op": "hello", "log": log.ref.id, "offset": self.offset.to_json(), **names}

    def join(self) -> Source:
        assert self.client.request(self.hello) == {"ok": True}
        return self

    def ask(self) -> dict[str, Any]:
        return self.client.request(
            {"op": "ask", "reader": self.offset.reader, "start": self.offset.to_json()}
        )

    def run(self) -> int:
        """One batch, when there is one; returns where it ends."""
        answer = until(lambda: None if (got := self.ask()).get("wait") else got, "a grant")
        end = {int(p): position for p, position in answer["end"].items()}
        assert answer.get("late", {"0": 0})["0"] <= self.offset.end[0], "nothing is late here"
        rows = end[0] - self.offset.end[0]
        offset = self.offset.advanced(end, {}, KEEP_ALL, self.offset.books.plus(Books(rows)))
        planned = {"op": "planned", "reader": offset.reader, "offset": offset.to_json(), "admitted": rows}
        until(lambda: self.client.request(planned)["go"], "its turn")
        self.offset = offset
        return end[0]

    def read_to(self, end: int) -> None:
        until(lambda: self.run() >= end, f"position {end} of {self.log.name}")


def test_no_log_is_called_in_the_thread_that_decides(served: Served) -> None:
    log = served.stream("a", 6000)
    source = Source(served, log, "semantic").join()
    ReaderRegistry(log).advance("a", {0: 100})  # type: ignore[arg-type]
    source.read_to(6000)
    log.write(50)
    source.read_to(6050)
    calls = {"start", "end", "header_arrays", "trim"}
    until(lambda: calls <= {name for name, _ in log.called}, "all calls")
    for op in ("status", "plan", "config"):
        source.client.request({"op": op})
    decides = served._thread.ident
    assert [name for name, thread in log.called if thread == decides] == []


def fetched(served: Served, log: Watched) -> Callable[[], Fetched | None]:
    """Has the control plane read rows for a shedder; gives what the engine hears of it, when it does."""
    fetch = Fetch(log.ref.id, 0, Look("v"), segments=(0, 50))
    found: list[Fetched] = []
    heard = served.engine.handle

    def handle(event: Event) -> Sequence[Instruction]:
        found.extend([event] if isinstance(event, Fetched) else [])
        return heard(event)

    served.engine.handle = handle  # type: ignore[method-assign]
    served.loop.call_soon_threadsafe(served.server.fetch, FetchRows("a", fetch))
    return lambda: found[0] if found else None


def test_rows_that_a_shedder_needs_are_not_read_in_the_thread_that_decides(served: Served) -> None:
    log = served.stream("a", 400)
    Source(served, log, "semantic").join()
    answer = until(fetched(served, log), "the rows")
    assert answer.values is not None
    assert answer.values.segments[50].values.tolist() == list(range(50, 100))
    assert {"header_arrays", "read"} <= {name for name, _ in log.called}
    assert [name for name, thread in log.called if thread == served._thread.ident] == []


def test_a_grant_goes_on_without_the_shedder_where_rows_are_not_read_soon_enough(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.host.server.FETCH_S", 0.05)
    log = served.stream("a", 400)
    Source(served, log, "semantic").join()
    log.hang()
    until(log.inside.is_set, "it hangs")
    first = until(fetched(served, log), "an answer")
    calls = len(log.called)
    second = until(fetched(served, log), "another answer")
    assert (first.values, second.values) == (None, None)
    assert len(log.called) == calls, "no second thread hangs"
    log.free.set()
    until(lambda: until(fetched(served, log), "an answer").values is not None, "the rows, when they are read")


def test_a_stream_that_hangs_is_governed_by_what_is_known_and_others_do_not_notice(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    hung, other = served.stream("hung", 1500), served.stream("other", 100)
    first, second = Source(served, hung).join(), Source(served, other).join()
    first.run()
    hung.hang()
    until(hung.inside.is_set, "it hangs")
    hung.write(500)
    first.read_to(1500)
    second.read_to(100)
    other.write(70)
    second.read_to(170)
    third = Source(served, served.stream("third", 40)).join()
    third.read_to(40)
    said = [r.getMessage() for r in caplog.records if str(hung.directory) in r.getMessage()]
    assert len(said) == 1
    assert "does not answer" in said[0]
    hung.free.set()
    first.read_to(2000)


def test_a_hung_stream_of_a_server_is_opened_anew_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, written = Served(tmp_path), made(tmp_path, "readings")
    written.write(100)
    with FlightServer(tmp_path, authenticate=False) as server:
        hung = Watched(open_stream(f"{server.address}/readings"))  # type: ignore[arg-type]
        served.logs["readings"] = hung
        monkeypatch.setattr("penstock.host.server.open_stream", served.open)
        monkeypatch.setattr("penstock.host.server.CHORES_S", 0.01)
        monkeypatch.setattr("penstock.host.tailers.HUNG_S", 0.2)
        served.start()
        try:
            source = Source(served, hung).join()
            source.read_to(100)
            hung.hang()
            until(hung.inside.is_set, "it hangs")
            written.write(60)
            source.read_to(160)
            assert not hung.free.is_set(), "the rows came from the log that was opened anew"
        finally:
            served.end()
    written.log.close()


def test_a_stream_that_fails_is_governed_by_what_is_known_until_it_works_again(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = served.stream("broken", 1500), served.stream("other", 100)
    first, second = Source(served, broken).join(), Source(served, other).join()
    broken.error = OSError("no disk")
    broken.write(500)
    first.read_to(1500)
    second.read_to(100)
    broken.error = None
    first.read_to(2000)
    said = [r.getMessage() for r in caplog.records if "cannot be looked at" in r.getMessage()]
    assert len(said) <= 1


def test_streams_whose_opening_hangs_hold_up_no_other_reader(served: Served) -> None:
    free, opening = threading.Event(), []

    def hangs() -> None:
        opening.append(1)
        free.wait()

    places = [str(served.folder / f"hung{i}") for i in range(40)]
    served.opens = dict.fromkeys(places, hangs)
    waiting = []
    for place in places:
        offset = Offset.initial(place, {0: 0}).to_json()
        names = {"query": place, "name": place, "slot": "", "token": "", "cls": "gold"}
        connection = served.raw()
        message = {"v": VERSION, "op": "hello", "log": place, "offset": offset, **names}
        connection.sendall(json.dumps(message).encode() + b"\n")
        waiting.append(connection)
    until(lambda: len(opening) == len(places), "all of them hang")
    source = Source(served, served.stream("well", 30)).join()
    source.read_to(30)
    again = served.raw()
    offset = Offset.initial(places[0], {0: 0}).to_json()
    names = {"query": "again", "name": "again", "slot": "", "token": "", "cls": "gold"}
    hello = {"v": VERSION, "op": "hello", "log": places[0], "offset": offset, **names}
    again.sendall(json.dumps(hello).encode() + b"\n")
    source.client.request({"op": "status"})
    assert len(opening) == len(places), "a stream that hangs is not opened once more meanwhile"
    for connection in (*waiting, again):
        connection.close()
    free.set()


def test_a_client_that_does_not_read_its_answers_is_dropped_and_its_slot_is_free(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.host.server.SEND_S", 0.05)
    log = served.stream("a", 500)
    source = Source(served, log).join()
    assert "end" in until(lambda: None if (got := source.ask()).get("wait") else got, "a grant")
    connection = source.client._socket
    assert connection is not None
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):  # until its answers fill all buffers
        while True:
            connection.send(b'{"v": 1, "op": "config"}\n')
    until(lambda: "a" not in served.engine.members.readers, "it is dropped")
    assert served.engine.leases.held == {}
    assert served.client().request({"op": "ping"}) == {"ok": True}


@pytest.mark.parametrize(
    "error",
    [ValueError("inside"), ConnectionResetError("inside"), asyncio.IncompleteReadError(b"", 1)],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_engine_is_logged_whatever_its_class_and_its_source_hears_nothing(
    served: Served, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(served, served.stream("a", 500)).join()

    def fails(_: Any) -> None:
        raise error

    monkeypatch.setattr(served.engine, "_asked", fails)
    with pytest.raises(ControlSilentError, match="closed by the control plane"):
        source.ask()
    found = [r.exc_info[1] for r in caplog.records if r.exc_info and "was not answered" in r.getMessage()]
    assert found == [error]
    monkeypatch.undo()
    source.join().read_to(500)


def test_a_connection_that_breaks_and_a_line_that_is_too_long_are_no_errors_of_the_control_plane(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "penstock.host.server")
    too_long, gone, nobody = served.raw(), served.raw(), served.client()
    with contextlib.suppress(ConnectionError):  # it hangs up in the middle of the line
        too_long.sendall(b"x" * (LINE_BYTES + 1))
    gone.sendall(b'{"v": 1, "op": "config"}\n')
    gone.close()  # the answer that nobody reads resets the connection
    ask = {"op": "ask", "reader": "nobody", "start": Offset.initial("nobody", {0: 0}).to_json()}
    with pytest.raises(ControlSilentError):
        nobody.request(ask)

    def ended() -> list[str]:
        return [r.getMessage() for r in caplog.records if "a connection ended" in r.getMessage()]

    until(lambda: any("limit" in line for line in ended()), "the long line")
    until(lambda: any("nobody has not joined" in line for line in ended()), "the unknown reader")
    until(lambda: not served.server._aside.tasks, "all connections have ended")
    assert [r.getMessage() for r in caplog.records if r.levelname in ("WARNING", "ERROR")] == []
    too_long.close()


def test_a_message_that_is_cut_off_holds_up_nobody_and_is_not_carried_out(served: Served) -> None:
    whole = json.dumps({"v": VERSION, "op": "shedding", "on": False}).encode()
    waiting, ended = served.raw(), served.raw()
    for connection in (waiting, ended):
        connection.sendall(whole[:-3])
    ended.shutdown(socket.SHUT_WR)
    with ended.makefile("rb") as lines:
        assert json.loads(lines.readline())["error"]["rule"] == "a message is one line of JSON"
        assert lines.readline() == b"", "the connection has ended"
    assert served.client().request({"op": "status"})["status"]["shedding"] is True
    waiting.sendall(whole[-3:] + b"\n")
    with waiting.makefile("rb") as lines:
        assert json.loads(lines.readline()) == {"ok": True}
    for connection in (waiting, ended):
        connection.close()


def test_a_line_that_broke_goes_on_with_all_that_waits(served: Served) -> None:
    log = served.stream("a", 1500)
    source = Source(served, log).join()
    assert source.run() < 1500
    source.client.close()
    until(lambda: "a" not in served.engine.members.readers, "it has left")
    source.hello["offset"] = source.offset.to_json()
    source.join().read_to(1500)


def test_a_reader_that_begins_further_back_gets_all_rows_from_there_on(served: Served) -> None:
    log = served.stream("a", 3000)
    ahead = Source(served, log).join()
    ahead.read_to(3000)
    ahead.ask()
    behind = Source(served, log)
    behind.offset = Offset.initial("behind", {0: 1000})
    behind.hello |= {"query": "behind", "offset": behind.offset.to_json()}
    behind.join()
    status = behind.client.request({"op": "status"})["status"]
    assert status["classes"]["gold"]["queries"]["behind"]["waiting"] == 2000
    behind.read_to(3000)


@pytest.mark.parametrize("leaves", ["its own old line", "a reader ahead of it"])
def test_headers_for_a_reader_that_joins_are_kept_whoever_leaves_before_it_has_joined(
    served: Served, leaves: str
) -> None:
    log, behind = served.stream("a", 1500), "a"
    source = Source(served, log).join()
    first = source.run()
    assert first < 1500
    if leaves == "a reader ahead of it":
        source.read_to(1500)
        behind = "behind"
    gone = served.engine.members.readers["a"].connection
    follow = served.server._tailers.follow

    def follow_and_leave(
        log: Any, positions: Mapping[int, int], ready: Callable[[], None]
    ) -> Callable[[], None]:
        def told() -> None:  # the engine has the headers: the other line breaks before it hears of the reader
            served.loop.call_soon_threadsafe(served.server._leave, gone)
            ready()

        return follow(log, positions, told)

    served.server._tailers.follow = follow_and_leave  # type: ignore[method-assign]
    again = Source(served, log)
    again.offset = replace(Offset.initial(behind, {0: first}), grant=1, books=Books(first))
    again.hello |= {"query": behind, "token": behind, "offset": again.offset.to_json()}
    again.join()
    status = again.client.request({"op": "status"})["status"]
    assert status["classes"]["gold"]["queries"][behind]["waiting"] == 1500 - first
    log.write(100)
    again.read_to(1600)
    assert served.engine.members.expected == {}
