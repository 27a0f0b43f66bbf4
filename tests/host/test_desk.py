"""Messages to a control plane: a sender's mistake is refused, an error of Penstock ends no query."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.config.flow import load_flow_config
from penstock.control.core.engine import Engine
from penstock.grants.offset import Offset
from penstock.host.client import VERSION
from penstock.host.desk import HungUpError
from penstock.host.server import ControlServer, now
from penstock.host.wire import Refuse, parsed
from penstock.streams.embedded.log import EmbeddedLog
from penstock.vocabulary.errors import InvalidInputError, PenstockError

ERRORS = [ValueError("v"), KeyError("k"), TypeError("t"), ZeroDivisionError("z"), PenstockError("p")]
ERRORS += [InvalidInputError("a rule of some policy", "got", "hint")]
START = Offset.initial("r", {0: 0}).to_json()


class Desk:
    """A control plane whose socket is left out."""

    def __init__(self, folder: Path) -> None:
        config = load_flow_config({"log": folder, "classes": {"gold": {"target": "2s"}}})
        self.engine = Engine(config, now())
        self.server = ControlServer(f"unix://{folder}/socket", self.engine)
        with EmbeddedLog.create(folder / "stream", pa.schema([("v", pa.int64())])) as log:
            log.append(pa.record_batch({"v": pa.array(range(10), pa.int64())}))
        self.start = START
        names = dict.fromkeys(("query", "name", "slot", "token"), "")
        self.hello = {"op": "hello", **names, "cls": "gold", "log": str(folder / "stream")}
        self.say({**self.hello, "offset": self.start})

    def say(self, message: Any) -> dict[str, Any]:
        text = message if isinstance(message, str) else json.dumps({"v": 1, **message})
        return asyncio.run(self.server._answer(self, text.encode()))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.server._tailers.close()


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(
    ("op", "method"),
    [("ask", "_asked"), ("ask", "_grant_next"), ("planned", "_planned"), ("planned", "handle")],
)
def test_a_source_hears_nothing_of_an_error_inside_so_that_it_goes_on_by_itself(
    desk: Desk, op: str, method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(desk.engine, method, fails)
    message = {"op": op, "reader": "r", "start": desk.start, "offset": desk.start, "admitted": 0}
    with pytest.raises(type(error)):  # the connection ends: silence, to a source
        desk.say(message)


@pytest.mark.parametrize("error", [*ERRORS[:-1], OSError("o")], ids=lambda e: type(e).__name__)
def test_a_source_hears_nothing_of_an_error_inside_while_it_joins(
    desk: Desk, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(desk.engine, "_joined", fails)
    with pytest.raises(type(error)):
        desk.say({**desk.hello, "offset": desk.start})


def test_a_source_hears_nothing_of_a_control_plane_that_has_too_many_open_files(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EmbeddedLog.create(tmp_path / "other", pa.schema([("v", pa.int64())])).close()

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("penstock.streams.opening.EmbeddedLog", fails)
    with pytest.raises(OSError, match="too many open files"):
        desk.say({**desk.hello, "log": str(tmp_path / "other"), "offset": desk.start})


def test_a_source_of_an_unknown_class_or_stream_is_refused(desk: Desk) -> None:
    for wrong in ({"cls": "silver"}, {"log": "/nowhere"}):
        assert "error" in desk.say({**desk.hello, "offset": desk.start, **wrong})


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_user_is_told_of_an_error_inside(
    desk: Desk, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(desk.engine, "config_now", fails)
    assert "error" in desk.say({"op": "config"})


def test_a_refusal_that_is_meant_ends_the_query(desk: Desk) -> None:
    why = {"rule": "a governed query has the default trigger", "got": "5 seconds", "hint": "leave it out"}
    assert desk.say({"op": "forbid", "token": "", "reader": "r", **why}) == {"ok": True}
    assert desk.say({"op": "ask", "reader": "r", "start": desk.start})["error"] == why


def test_a_reader_that_has_gone_is_to_say_hello_again(desk: Desk) -> None:
    desk.server.desk.leave(desk)
    with pytest.raises(HungUpError, match="has not joined"):
        desk.say({"op": "ask", "reader": "r", "start": desk.start})


@pytest.mark.parametrize(
    "message",
    [
        {"op": "ask"},
        {"op": "ask", "reader": "r", "start": 5},
        {"op": "ask", "reader": "r", "start": {}},
        {"op": "planned", "reader": "r", "admitted": 1},
        '{"v": 1, "op": "dropped", "batch": Infinity, "rows": []}',
        '{"v": 1, "op": "dropped", "batch": NaN, "rows": []}',
        {"op": "dropped", "batch": 1, "rows": [[1]]},
        {"op": "last_stage", "tokens": 5},
        {"op": "change", "cls": "gold", "changes": 5},
        {"op": "nothing"},
        {"op": "forbid", "rule": "r", "got": "g", "hint": "h"},
        {"op": "refuse", "tokens": "abc"},
        {"op": "change", "cls": None, "changes": {}},
        '{"v": 1, "op": "ask", "reader": "r", "start": {"penstock": 2, "reader": "r", "grant": 0, '
        '"start": {"0": 0}, "end": {"0": Infinity}, "books": [0, 0, 0, 0, 0]}}',
        "[]",
        "{",
    ],
    ids=str,
)
def test_a_message_that_is_not_understood_is_refused(desk: Desk, message: Any) -> None:
    assert set(desk.say(message)["error"]) == {"rule", "got", "hint"}


def test_a_ping_is_answered(desk: Desk) -> None:
    assert desk.say({"op": "ping"}) == {"ok": True}


def test_a_message_that_lacks_something_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(
        InvalidInputError, match=r"well formed: ask.start: Field required; got: .*host/wire.py"
    ):
        parsed({"v": VERSION, "op": "ask", "reader": "r"})
    with pytest.raises(InvalidInputError, match=r"planned.admitted: Input should be a valid integer"):
        parsed({"v": VERSION, "op": "planned", "reader": "r", "offset": START, "admitted": "many"})
    with pytest.raises(InvalidInputError, match="a message names a known operation; got: 'dance'"):
        parsed({"v": VERSION, "op": "dance"})
    with pytest.raises(InvalidInputError, match=r"a message is a JSON object with v = 1; got: \{'v': 2"):
        parsed({"v": 2, "op": "ping"})


def test_fields_that_a_newer_client_adds_are_ignored() -> None:
    found = parsed({"v": VERSION, "op": "refuse", "tokens": ["a"], "because": "of it"})
    assert found == Refuse(op="refuse", tokens=frozenset({"a"}))
