"""The control plane as a process: JSON lines on a Unix socket, whatever comes over it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.waits import PATIENCE_S, until

from penstock.config.flow import load_flow_config
from penstock.control.tuning import TUNING
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL
from penstock.host.client import ControlClient, ControlSilentError, peer_user
from penstock.host.holding import HOLD_S, LONGEST_HOLD_S, QUESTIONS_PER_S, hold_s
from penstock.host.process import TUNING_VARIABLE, serve, tuning
from penstock.host.server import ControlServer
from penstock.record.parts import all_parts
from penstock.record.reading import read_run
from penstock.record.replay import rebuild_managers, replay
from penstock.streams.embedded.log import EmbeddedLog
from penstock.vocabulary.errors import InvalidInputError


class Control:
    """`python -m penstock.host.process`, fed on standard input as a driver does."""

    def __init__(self, folder: Path, run: bool = False) -> None:
        self.folder, self.path = folder, folder / "control.sock"
        self.address = f"unix://{self.path}"
        self.run = folder / "run" if run else None
        classes = {"gold": {"target": "2s"}, "bulk": {"target": "30s"}}
        start = {
            "address": self.address,
            "config": load_flow_config({"log": folder, "classes": classes}).to_json(),
            "run": str(self.run) if run else None,
            "record": {"kind": "spark"},
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.host.process"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PENSTOCK_LOG": "CRITICAL"},
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(start).encode() + b"\n")
        self.process.stdin.flush()
        until(lambda: ControlServer.answers(self.address) or self.process.poll() is not None)
        self.clients: list[ControlClient] = []

    def client(self) -> ControlClient:
        self.clients.append(ControlClient(self.address, PATIENCE_S))
        return self.clients[-1]

    def raw(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(PATIENCE_S)
        connection.connect(str(self.path))
        return connection

    def end(self) -> int:
        for client in self.clients:
            client.close()
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def stream(self, name: str, rows: int) -> Path:
        with EmbeddedLog.create(self.folder / name, pa.schema([("v", pa.int64())])) as log:
            log.append(pa.record_batch({"v": pa.array(range(rows), pa.int64())}))
        return self.folder / name


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """One for all tests that leave it as it was; each test has streams and queries of its own name."""
    started = Control(tmp_path_factory.mktemp("control"))
    yield started
    assert started.end() == 0


def hello(reader: str, stream: Path, query: str = "", cls: str = "gold", slot: str = "") -> dict[str, Any]:
    offset = Offset.initial(reader, {0: 0}).to_json()
    names = {
        "query": query or reader,
        "name": query or reader,
        "cls": cls,
        "slot": slot,
        "token": f"token of {reader}",
    }
    return {"op": "hello", "log": str(stream), "offset": offset, **names}


def ask(reader: str, start: Offset | None = None) -> dict[str, Any]:
    start = start or Offset.initial(reader, {0: 0})
    return {"op": "ask", "reader": reader, "start": start.to_json()}


def granted(client: ControlClient, reader: str) -> dict[str, Any]:
    """Asks until there is a grant, as Spark does."""

    def answer() -> dict[str, Any] | None:
        got = client.request(ask(reader))
        return None if got.get("wait") else got

    found: dict[str, Any] = until(answer)
    return found


def query_status(client: ControlClient, query: str, cls: str = "gold") -> dict[str, Any]:
    found: dict[str, Any] = client.request({"op": "status"})["status"]["classes"][cls]["queries"][query]
    return found


def test_a_source_joins_asks_plans_and_asks_again(control: Control) -> None:
    client, stream = control.client(), control.stream("trip", 1500)
    assert client.request(hello("trip", stream)) == {"ok": True}
    answer = granted(client, "trip")
    assert answer == {"end": {"0": 1000}, "late": {"0": 0}, "plan": {}, "tick": False, "sources": 1}
    offset = Offset.initial("trip", {0: 0}).advanced(
        {0: 1000}, {}, plan=Offset("", {}, {}).plan, books=Books(1000)
    )
    planned = {"op": "planned", "reader": "trip", "offset": offset.to_json(), "admitted": 1000}
    assert client.request(planned) == {"go": True}
    seen = query_status(client, "trip")
    assert (seen["admitted"], seen["waiting"], seen["running"]) == (1000, 500, True)
    dropped = {"op": "dropped", "batch": 0, "rows": [["trip", 1, 250.0], ["nobody", 1, 9.0]]}
    assert client.request(dropped) == {"ok": True}
    seen = query_status(client, "trip")
    assert (seen["dropped_by_watermark"], seen["sic"], seen["sic_batch"]) == (250.0, 0.75, 0.75)
    until(lambda: client.request(ask("trip", offset)).get("end") == {"0": 1500})
    client.close()
    until(lambda: not query_status(control.client(), "trip")["running"])


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"\xff\xfe\x00garbage\x80",
        b"",
        b"[]",
        b"null",
        b'{"v": 1}',
        b'{"v": 1, "op": "hello"}',
        b'{"v": 1, "op": "ask", "reader": "nobody", "start": {}}',
        b'{"v": 1, "op": "ask", "reader": "nobody", "start": []}',
        b'{"v": 1, "op": "planned", "reader": {}, "offset": 3}',
        b'{"v": 1, "op": "dropped", "batch": 3, "rows": [[1, 2]]}',
        b'{"v": 1, "op": "change", "cls": "gold", "changes": 3}',
        b'{"v": 1, "op": "status"',
        b'{"v": 2, "op": "status"}',
        b'{"v": "1", "op": "status"}',
        b'{"op": "status"}',
    ],
)
def test_garbage_is_answered_with_an_error_and_the_connection_goes_on(control: Control, line: bytes) -> None:
    with control.raw() as connection, connection.makefile("rwb") as lines:
        lines.write(line + b"\n")
        lines.flush()
        error = json.loads(lines.readline())["error"]
        assert set(error) == {"rule", "got", "hint"}
        lines.write(b'{"v": 1, "op": "status"}\n')
        lines.flush()
        assert "gold" in json.loads(lines.readline())["status"]["classes"]


@pytest.mark.parametrize(
    "sent",
    [b"[" * 200_000 + b"\n", b"x" * (5 << 20), b'{"v": 1, "op": "' + b"x" * 100_000_000 + b'"}\n'],
    ids=["a hundred thousand brackets", "a line without end", "a hundred megabytes"],
)
def test_what_cannot_be_a_message_ends_its_own_connection_at_most(control: Control, sent: bytes) -> None:
    with control.raw() as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass  # it hung up in the middle of it
    assert control.client().request({"op": "status"})["status"]["slots"] == "auto"


def test_nobody_waits_for_a_client_that_stops_reading(control: Control) -> None:
    with control.raw() as connection:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # until its answers fill all buffers
            while True:
                connection.send(b'{"v": 1, "op": "config"}\n')
        assert control.client().request({"op": "status"})["status"]["slots"] == "auto"


def test_messages_that_break_a_rule_are_refused_by_name(control: Control) -> None:
    client, stream = control.client(), control.stream("rules", 10)
    with pytest.raises(InvalidInputError, match="a message names a known operation; got: 'dance'"):
        client.request({"op": "dance"})
    with pytest.raises(
        InvalidInputError, match=r"a message is a JSON object with v = 1; .* use the same Penstock"
    ):
        client.request({"op": "status", "v": 2})
    with pytest.raises(InvalidInputError, match="class must be one of bulk, gold; got: 'golden'"):
        client.request(hello("rules", stream, cls="golden"))
    with pytest.raises(InvalidInputError, match="nowhere"):
        client.request(hello("rules", control.folder / "nowhere"))
    with pytest.raises(InvalidInputError, match="class must be one of bulk, gold; got: 'golden'"):
        client.request({"op": "change", "cls": "golden", "changes": {"target": "1s"}})
    with pytest.raises(InvalidInputError, match="target"):
        client.request({"op": "change", "cls": "gold", "changes": {"target": "soon"}})
    wrong = {**hello("rules", stream), "offset": {"topic": {"0": 17}}}
    with pytest.raises(InvalidInputError, match="an offset of a governed reader has format 1"):
        client.request(wrong)


def test_a_second_query_from_the_readers_of_flow_query_is_refused(control: Control) -> None:
    stream = control.stream("twice", 10)
    first, second = control.client(), control.client()
    first.request(hello("twice-1", stream, query="fraud", slot="0"))
    with pytest.raises(
        InvalidInputError, match=r"the readers of flow.query\('fraud'\) are used in one streaming"
    ):
        second.request(hello("twice-2", stream, query="fraud", slot="0"))
    second.request(hello("twice-2", stream, query="fraud", slot="1"))
    first.close()
    # the first one's connection is gone: its place is free
    third = control.client()

    def joined() -> bool:
        try:
            return bool(third.request(hello("twice-3", stream, query="fraud", slot="0")))
        except InvalidInputError:
            return False

    until(joined)


def test_who_reads_beside_a_query_is_told_when_that_has_a_new_grant(control: Control) -> None:
    client, stream = control.client(), control.stream("beside", 100)
    new = {"op": "granted", "query": "besides"}
    assert client.request(new) == {"granted": False}
    client.request(hello("besides-reader", stream, "besides", slot="1:beside"))
    assert client.request(new) == {"granted": False}
    answer = granted(client, "besides-reader")
    assert client.request(new) == {"granted": True}
    end = {int(p): position for p, position in answer["end"].items()}
    start = Offset.initial("besides-reader", {0: 0})
    offset = start.advanced(end, {}, KEEP_ALL, Books(100))
    client.request({"op": "planned", "reader": start.reader, "offset": offset.to_json(), "admitted": 100})
    assert client.request(new) == {"granted": False}, "its micro-batch is planned without what comes now"
    client.close()


def test_a_connection_that_drops_while_it_holds_the_grant_frees_the_slot(control: Control) -> None:
    stream = control.stream("drop", 10)
    holder, other = control.client(), control.client()
    holder.request(hello("drop-1", stream))
    other.request(hello("drop-2", stream))
    granted(holder, "drop-1")
    assert other.request(ask("drop-2")) == {"wait": True}
    holder.close()
    granted(other, "drop-2")
    other.close()


def test_a_batch_that_is_run_again_waits_for_the_slot(control: Control) -> None:
    stream = control.stream("again", 10)
    holder, other = control.client(), control.client()
    holder.request(hello("again-1", stream))
    other.request(hello("again-2", stream))
    granted(holder, "again-1")
    offset = Offset("again-2", {0: 0}, {0: 10}, grant=1, books=Books(10))
    planned = {"op": "planned", "reader": "again-2", "offset": offset.to_json(), "admitted": 10}
    assert other.request(planned) == {"go": False}
    holder.close()
    until(lambda: other.request(planned)["go"])
    other.close()


def test_a_reader_that_is_not_first_in_its_query_is_told_to_wait(control: Control) -> None:
    client, stream = control.client(), control.stream("second", 10)
    empty = control.stream("second-empty", 0)
    client.request(hello("second-1", empty, query="both", slot="0"))
    client.request(hello("second-2", stream, query="both", slot="1"))
    client.request({"op": "refuse", "tokens": ["token of second-1"]})
    assert client.request(ask("second-1")) == {"wait": True}
    assert client.request(ask("second-2")) == {"wait": True}
    client.request({"op": "refuse", "tokens": ["token of second-1"], "on": False})
    assert granted(client, "second-1")["tick"]
    assert client.request(ask("second-2"))["end"] == {"0": 10}
    client.close()


def test_questions_are_held_longer_the_more_queries_wait_up_to_what_stopping_one_may_take() -> None:
    assert hold_s(1) == HOLD_S
    assert hold_s(31) == pytest.approx(31 / QUESTIONS_PER_S)
    assert hold_s(1000) == LONGEST_HOLD_S
    assert hold_s(1000, timeout_s=0.3) == 0.15


def test_commands_are_carried_out(control: Control) -> None:
    client, stream = control.client(), control.stream("commands", 10)
    client.request(hello("commands", stream, cls="bulk"))
    assert client.request({"op": "change", "cls": "bulk", "changes": {"target": "20s"}}) == {"floor_s": None}
    assert client.request({"op": "shedding", "on": False}) == {"ok": True}
    assert client.request({"op": "mark"}) == {"ok": True}
    seen = client.request({"op": "status"})["status"]
    assert (seen["classes"]["bulk"]["target_s"], seen["shedding"]) == (20.0, False)
    client.request({"op": "shedding", "on": True})
    assert client.request({"op": "refuse", "tokens": ["token of commands"]}) == {"running": []}
    assert client.request(ask("commands")) == {"wait": True}
    client.request({"op": "refuse", "tokens": ["token of commands"], "on": False})
    granted(client, "commands")
    assert client.request({"op": "drain", "tokens": ["token of commands"]}) == {"running": ["commands"]}
    client.close()


def test_a_driver_stops_and_drains_its_own_queries_not_those_of_others(control: Control) -> None:
    client, stream = control.client(), control.stream("shared", 10)
    client.request(hello("shared-1", stream))
    client.request(hello("shared-2", stream))
    mine = {"tokens": ["token of shared-1"]}
    assert client.request({"op": "refuse", **mine}) == {"running": []}
    assert client.request(ask("shared-1")) == {"wait": True}
    granted(client, "shared-2")
    assert client.request({"op": "left", **mine})["unfinished"] == ["shared-1"]
    assert client.request({"op": "drain", **mine}) == {"running": []}
    client.close()


def test_a_reader_that_is_forbidden_is_told_why_and_others_go_on(control: Control) -> None:
    client, stream = control.client(), control.stream("forbidden", 10)
    client.request(hello("forbidden-1", stream))
    client.request(hello("forbidden-2", stream))
    reason = {"rule": "a governed query has the default trigger", "got": "every 5 s", "hint": "leave it out"}
    assert client.request({"op": "forbid", "token": "token of forbidden-1", **reason}) == {"ok": True}
    with pytest.raises(InvalidInputError, match="a governed query has the default trigger; got: every 5 s"):
        client.request(ask("forbidden-1"))
    granted(client, "forbidden-2")
    client.close()


def test_the_socket_belongs_to_its_owner_alone(control: Control) -> None:
    mode = control.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_client_talks_to_its_own_user_alone(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a shared directory can be taken by another user first."""
    connection = control.raw()
    assert peer_user(connection) == os.getuid()
    connection.close()
    monkeypatch.setattr("penstock.host.client.peer_user", lambda _: os.getuid() + 4321)
    with pytest.raises(ControlSilentError, match=r"is of this user; got: one of user \d+; hint"):
        control.client().request({"op": "status"})
    monkeypatch.setattr("penstock.host.client.peer_user", lambda _: 0)
    assert control.client().request({"op": "status"})


def test_a_file_at_the_address_is_refused_and_not_removed(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("file")
    (folder / "data.parquet").write_text("rows")
    (folder / "flow.yaml").write_text("log: log\nclasses: {gold: {target: 2s}}\n")
    command = [sys.executable, "-c", "import penstock.cli, sys; sys.exit(penstock.cli.main())"]
    command += ["control", "serve", str(folder / "flow.yaml"), "--address", f"unix://{folder}/data.parquet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "a path of its own" in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "data.parquet").read_text() == "rows"


def test_a_bench_changes_figures_of_its_control_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning() == TUNING
    monkeypatch.setenv(TUNING_VARIABLE, '{"eager": true}')
    assert tuning() == replace(TUNING, eager=True)


def test_a_socket_that_a_killed_control_plane_left_is_replaced(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("left")
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(folder / "control.sock"))
    left.close()
    control = Control(folder)
    until(lambda: ControlServer.answers(control.address))
    assert control.end() == 0


def end_by_closing(control: Control) -> None:
    assert control.process.stdin is not None
    control.process.stdin.close()


def end_by_signal(control: Control) -> None:
    control.process.send_signal(signal.SIGTERM)


def end_by_message(control: Control) -> None:
    control.client().request({"op": "stop"})


@pytest.mark.briefly("end_by_signal")
@pytest.mark.parametrize("end", [end_by_closing, end_by_signal, end_by_message])
def test_it_ends_with_its_driver_and_leaves_a_report(
    tmp_path_factory: pytest.TempPathFactory, end: Callable[[Control], None]
) -> None:
    control = Control(tmp_path_factory.mktemp("end"), run=True)
    client, stream = control.client(), control.stream("readings", 700)
    client.request(hello("a", stream))
    granted(client, "a")
    offset = Offset("a", {0: 0}, {0: 700}, grant=1, books=Books(700))
    client.request({"op": "planned", "reader": "a", "offset": offset.to_json(), "admitted": 700})
    end(control)
    assert control.process.wait(PATIENCE_S) == 0
    assert not control.path.exists()
    with pytest.raises(ControlSilentError, match="hint: is it running"):
        client.request({"op": "status"})
    assert control.run is not None
    report = json.loads((control.run / "report.json").read_text())
    gold = report["classes"]["gold"]
    assert (report["kind"], gold["offered"], gold["admitted"], gold["waiting"]) == ("spark", 700, 700, 0)
    run = read_run(control.run)
    assert not run.truncated
    assert len(run.decisions) == 1
    control.end()


def test_without_a_word_on_its_input_it_ends_at_once() -> None:
    command = [sys.executable, "-m", "penstock.host.process"]
    assert subprocess.run(command, input=b"", timeout=PATIENCE_S, check=False).returncode == 0


def test_the_record_of_a_control_plane_is_kept_in_parts_that_replay(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.record.parts.PARTS", 10_000)  # a part of a megabyte has a decision or two
    folder = tmp_path_factory.mktemp("parts")
    classes = {"gold": {"target": "2s"}, "bulk": {"target": "30s", "manager": "ctrl"}}
    start = {
        "address": f"unix://{folder}/control.sock",
        "config": load_flow_config({"log": folder, "classes": classes, "record_mb": 1}).to_json(),
        "run": str(folder / "run"),
        "record": {"kind": "spark"},
    }
    with EmbeddedLog.create(folder / "readings", pa.schema([("v", pa.int64())])) as log:
        log.append(pa.record_batch({"v": pa.array(range(5000), pa.int64())}))

    def drive() -> None:
        client = ControlClient(start["address"], PATIENCE_S)
        until((folder / "control.sock").exists)
        client.request(hello("a", folder / "readings"))
        offset = Offset.initial("a", {0: 0})
        while offset.end[0] < 3000:
            answer = until(lambda: _answered(client, offset))  # noqa: B023 - called at once
            end = {int(p): position for p, position in answer["end"].items()}
            offset = offset.advanced(end, {}, KEEP_ALL, Books(end[0] - offset.end[0]))
            client.request({"op": "planned", "reader": "a", "offset": offset.to_json(), "admitted": 1})
        client.close()

    async def serve_and_drive() -> None:
        driver = asyncio.StreamReader()
        served = asyncio.create_task(serve(start, driver))
        await asyncio.to_thread(drive)
        driver.feed_eof()
        await served

    asyncio.run(serve_and_drive())
    whole = read_run(folder / "run")
    assert (whole.dropped, len(whole.decisions) > 2) == (0, True)
    parts = all_parts(folder / "run" / "decisions.jsonl")
    assert len(parts) > 2
    for name in ("decisions-000001.jsonl", "observations-000001.arrows"):
        (folder / "run" / name).unlink()
    rest = read_run(folder / "run")
    assert rest.dropped == 1
    assert set(rest.managers) == {"gold", "bulk"}
    names = {seen.cls for seen in rest.observations}
    assert replay(rest, rebuild_managers(rest.config, names, states=rest.managers)).first_difference is None


def _answered(client: ControlClient, offset: Offset) -> dict[str, Any] | None:
    got = client.request(ask("a", offset))
    return None if got.get("wait") else got
