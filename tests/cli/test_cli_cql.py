"""`penstock cql` as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.cli import main

ROOT = Path(__file__).resolve().parents[2]
RIGHT = """REGISTER STREAM readings (device int, value float);
SELECT device, avg(value) FROM readings [RANGE 1 MINUTE] GROUP BY device HAVING count(*) > 10;
"""
FOR_EVER = """REGISTER STREAM a (k int, v float);
REGISTER STREAM b (k int, name char(8));
SELECT a.v, b.name FROM a [NOW], b WHERE a.k = b.k;
SELECT v FROM a [RANGE 1 SECOND SLIDE 5 SECONDS];
"""


def file_of(folder: Path, text: str, name: str = "queries.cql") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cql", "check", file_of(tmp_path, RIGHT), "--json", "-"]) == 0
    (query,) = json.loads(capsys.readouterr().out)["queries"]
    assert query["columns"] == {"device": "BIGINT", "avg_value": "DOUBLE"}
    assert query["stream"] is False
    assert query["advice"] == []


def test_what_is_kept_for_ever_is_said_and_in_strict_mode_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = file_of(tmp_path, FOR_EVER)
    assert main(["cql", "check", file]) == 0
    said = capsys.readouterr().out
    assert "a join keeps every tuple of b for ever: about 120 bytes each, 10 GB a day" in said
    assert "of a for ever" not in said
    assert "slides by 5s leaves tuples out" in said
    assert "2 queries over 2 streams are right" in said
    assert main(["cql", "check", file, "--strict"]) == 2
    assert "keeps nothing for ever (strict); got: a join keeps every tuple of b" in capsys.readouterr().err


def test_a_wrong_file_is_one_error_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of(tmp_path, RIGHT.replace("avg(value)", "avg(valu)"))
    assert main(["cql", "check", file]) == 2
    said = capsys.readouterr().err
    assert f"{file}:2:20: expected: a column is one of those in FROM; got: 'valu'; hint: did you mean" in said
    assert said.splitlines()[-1].strip() == "^^^^"


@pytest.mark.parametrize("text", ["", "-- nothing\n", "REGISTER STREAM a (k int);"])
def test_a_file_without_queries_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert main(["cql", "explain", file_of(tmp_path, text)]) == 2
    assert "at least one query" in capsys.readouterr().err


def test_a_file_that_is_no_text_or_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes.cql").write_bytes(b"\xff\xfe\x00")
    assert main(["cql", "check", str(tmp_path / "bytes.cql")]) == 2
    assert "UTF-8" in capsys.readouterr().err
    assert main(["cql", "check", str(tmp_path / "nowhere.cql")]) == 2
    assert "hint" in capsys.readouterr().err


def test_the_examples_of_the_page_are_what_commands_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "cql.md").read_text(encoding="utf-8")
    shown = re.search(
        r"\$ cat readings\.cql\n(.*?)\n\n\$ penstock cql explain readings\.cql\n(.*?)```", page, re.S
    )
    assert shown
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path, shown[1], "readings.cql")
    assert main(["cql", "explain", "readings.cql"]) == 0
    assert capsys.readouterr().out.split() == shown[2].split()
    wrong = re.search(r"\$ penstock cql check wrong\.cql\n(.*?)```", page, re.S)
    assert wrong
    query = next(line.strip() for line in wrong[1].splitlines() if line.strip().startswith("SELECT"))
    file_of(tmp_path, f"REGISTER STREAM readings (device int, value float);\n{query}\n", "wrong.cql")
    assert main(["cql", "check", "wrong.cql"]) == 2
    assert capsys.readouterr().err.split() == wrong[1].split()
