"""Where queries stand on the ways of their rows through shared streams."""

from __future__ import annotations

import pytest
from tests.queries import reader_of

from penstock.control.schedule.paths import Paths
from penstock.control.state.query import Joining, Query


def queries(**reads: str) -> dict[str, Query]:
    """By name, the streams that a query reads; all of class gold but `other`."""
    return {
        name: Query(
            Joining(name, name, "other" if name == "other" else "gold"),
            readers={s: reader_of(name, s, s) for s in streams.split()},
        )
        for name, streams in reads.items()
    }


def test_without_shared_streams_every_query_has_the_whole_target() -> None:
    paths = Paths(queries(one="s"), {})
    assert (paths.turns("one"), paths.due_fraction("one")) == (1, 1.0)


def test_each_query_of_a_way_has_its_part_and_the_last_one_the_whole() -> None:
    found = queries(first="s", second="a", third="b s", beside="s")
    paths = Paths(found, {"a": "first", "b": "second"})
    assert [paths.turns(name) for name in found] == [1, 2, 3, 1]
    parts = [paths.due_fraction(name) for name in found]
    assert parts == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])


def test_a_shared_stream_of_another_class_is_a_source_like_any_other() -> None:
    paths = Paths(queries(other="s", mine="a"), {"a": "other"})
    assert [paths.due_fraction(name) for name in ("other", "mine")] == [1.0, 1.0]


def test_a_circle_is_gone_round_once() -> None:
    paths = Paths(queries(one="b", two="a"), {"a": "one", "b": "two"})
    assert paths.turns("one") == paths.turns("two") == 2
    assert 0.0 < paths.due_fraction("one") <= 1.0


def test_ways_are_known_anew_when_a_reader_came() -> None:
    found = queries(first="s")
    paths = Paths(found, {"a": "first"})
    assert paths.due_fraction("first") == 1.0
    found.update(queries(second="a"))
    paths.changed()
    assert paths.due_fraction("first") == 0.5
