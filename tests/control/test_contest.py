"""A class that would be late goes before the one that is next by its weight: with which of its queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.control.contest import Contest
from penstock.control.cost import CostModel
from penstock.control.latest import Latest
from penstock.control.members import Query
from penstock.control.turns import Turn, Turns

TARGET_S, LENGTH_S = 4.0, 1.0


def query(cls: str, name: str, known: bool = True, rows: int = 50_000, waited_s: float = 0.0) -> Any:
    made: Any = Query(f"{cls}/{name}", name, cls, CostModel())
    for i in range(8 if known else 0):
        seen = 1000 * 4 ** min(i, 4)
        made.cost.learn(seen, 0.2 + seen * 20e-6)
    made.waiting = SimpleNamespace(rows=rows, oldest_s=0.0 if rows else None)
    made.granted_s = waited_s  # what `contest` takes as the time it has waited
    return made


def contest(*wanting: Query) -> Contest:
    """The class `first` is next by its weight, `late` has used more."""
    used = Turns({"first": 1.0, "late": 1.0})
    used.charge("late", 0.1)
    turns = {name: Turn(LENGTH_S, TARGET_S) for name in ("first", "late")}
    return Contest(
        list(wanting),
        {},
        turns,
        dict.fromkeys(turns, LENGTH_S),
        used,
        Latest(),
        (),
        lambda _: 1.0,
        lambda _: TARGET_S,
        lambda q: q.granted_s,
    )


def able(*wanting: Query) -> set[str]:
    cls, queries = contest(*wanting).winner({q.cls for q in wanting})
    assert cls == "late"
    return {q.name for q in queries}


def test_a_class_that_is_in_time_waits_for_its_turn() -> None:
    cls, _ = contest(query("first", "a"), query("late", "b", waited_s=1.0)).winner({"first", "late"})
    assert cls == "first"


def test_the_turn_before_others_is_for_the_queries_that_would_be_late() -> None:
    assert able(query("first", "a"), query("late", "b", waited_s=3.0), query("late", "c", waited_s=0.5)) == {
        "b"
    }


def test_a_query_that_is_still_being_learned_has_its_turns_in_a_class_that_is_always_late() -> None:
    late = query("late", "b", waited_s=3.0)
    assert able(query("first", "a"), late, query("late", "c", known=False, waited_s=9.0)) == {"b", "c"}


def test_windows_are_closed_and_logs_drained_in_a_class_that_always_goes_before_others() -> None:
    late, ticks, drains = (query("late", "b", waited_s=3.0), query("late", "c", rows=0), query("late", "d"))
    drains.draining = True
    assert able(query("first", "a"), late, ticks, drains) == {"b", "c", "d"}
