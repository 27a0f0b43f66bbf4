"""Queries of a family come and go with its file; what cannot be taken over changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.cql.analysis.families import Family
from penstock.pipeline.spec.families import LiveFamily
from penstock.pipeline.spec.load import load_pipeline

QUERY = "REGISTER QUERY {} AS SELECT avg(v) AS m FROM s [RANGE 1 SEC SLIDE 1 SEC] WHERE k = {}"


def text_of(**constants: object) -> str:
    return ";".join(QUERY.format(name, constant) for name, constant in constants.items())


class Watched:
    """A family with the queries a and b, and its file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "family.cql"
        self.file.write_text(text_of(a=1, b=2))
        raw: dict[str, Any] = {
            "log": "logs",
            "classes": {"gold": {"target": "2s"}},
            "streams": {"s": {"schema": {"k": "long", "v": "double"}}},
            "queries": {"mine": {"class": "gold", "cql_file": str(self.file)}},
        }
        config = load_pipeline(raw)
        family = config.continuous("mine").family
        assert family is not None
        self.published: list[Family] = []
        self.live = LiveFamily(config, "mine", family, self.published.append)

    def says(self, text: str) -> str:
        self.file.write_text(text)
        said = self.live.look()
        assert said is not None
        return said


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_file_that_stays_the_same_says_nothing(watched: Watched) -> None:
    assert watched.live.look() is None


def test_queries_join_and_leave_with_the_file(watched: Watched) -> None:
    assert watched.says(text_of(b=2, c=3)) == (
        "mine: c joined, a left; 2 queries from the next micro-batch on"
    )
    assert watched.live.look() is None
    assert [family.members for family in watched.published] == [{"b": (2,), "c": (3,)}]
    many = {name: at for at, name in enumerate("bcdefghi", 2)}
    assert "d, e, f, g, h and 1 more joined; 8 queries" in watched.says(text_of(**many))


def test_another_wording_of_the_same_queries_changes_nothing(watched: Watched) -> None:
    assert watched.says(text_of(a=1, b=2) + "  ;") == "mine: its file was changed, its queries are the same"
    assert not watched.published


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            text_of(a=1, b=7),
            "another constant is another query.*got: b; hint: give it a new name",
        ),
        (
            text_of(a=1.5, b=2.5),
            "takes queries with names that differ from it in constants alone; got: others",
        ),
        (text_of(a=1) + "; SELECT", "expected: an expression"),
        ("", "cql has a query"),
        ("SELECT avg(v) AS m FROM s [RANGE 1 SEC SLIDE 1 SEC] WHERE k = 1", "takes queries with names"),
    ],
    ids=["another constant", "another shape", "no CQL", "nothing", "no name"],
)
def test_what_cannot_be_taken_over_is_said_and_all_queries_go_on(
    watched: Watched, text: str, said: str
) -> None:
    found = watched.says(text)
    assert found.startswith("mine: family.cql is not taken over, all queries go on: ")
    assert re.search(said, found), found
    assert not watched.published
    assert watched.says(text_of(a=1, b=2, c=3)).startswith("mine: c joined")


def test_a_file_that_is_gone_is_said(watched: Watched) -> None:
    watched.file.unlink()
    assert "a file of CQL exists" in (watched.live.look() or "")
