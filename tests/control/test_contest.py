"""A class that would be late goes before the one that is next by its weight: with which of its queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.control.measure.cost import CostModel
from penstock.control.schedule.contest import WAITS, Contest
from penstock.control.schedule.turns import Turn, Turns
from penstock.control.schedule.urgency import Job, Latest, latest_starts
from penstock.control.state.members import Query

TARGET_S, LENGTH_S = 4.0, 1.0


def query(cls: str, name: str, known: bool = True, rows: int = 50_000, waited_s: float = 0.0) -> Any:
    made: Any = Query(f"{cls}/{name}", name, cls, CostModel())
    for i in range(8 if known else 0):
        seen = 1000 * 4 ** min(i, 4)
        made.cost.learn(seen, 0.2 + seen * 20e-6)
    made.waiting = SimpleNamespace(rows=rows, oldest_s=0.0 if rows else None)
    made.granted_s = waited_s  # what `contest` takes as the time it has waited
    return made


def contest(
    *wanting: Query,
    priorities: dict[str, float] | None = None,
    ahead_s: float = 0.1,
    latest: Latest | None = None,
    within: tuple[str, ...] = (),
) -> Contest:
    """The class `first` is next by its weight, `late` has used more."""
    used = Turns({"first": 1.0, "late": 1.0})
    used.charge("late", ahead_s)
    turns = {name: Turn(LENGTH_S, TARGET_S) for name in ("first", "late")}
    return Contest(
        list(wanting),
        {},
        turns,
        dict.fromkeys(turns, LENGTH_S),
        used,
        latest or Latest(),
        within,
        lambda cls: (priorities or {}).get(cls, 1.0),
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


HIGHER = {"late": 3.0}


def goes_first(waited_s: float = 0.0, first_waited_s: float = 0.0, **of: Any) -> str | None:
    wanting = (query("first", "a", waited_s=first_waited_s), query("late", "b", waited_s=waited_s))
    return contest(*wanting, **of).winner({"first", "late"})[0]


def test_a_higher_class_whose_batches_would_be_late_together_goes_before_a_lower_one() -> None:
    together = latest_starts([Job(2.5, "late/b", 0.8, 3.0), Job(2.5, "late/c", 0.8, 3.0)])
    assert together.is_late_after("late/b", LENGTH_S)
    assert goes_first(waited_s=1.0, priorities=HIGHER) == "first", "by itself it would be in time"
    assert goes_first(waited_s=1.0, priorities=HIGHER, latest=together) == "late"
    assert goes_first(waited_s=1.0, latest=together) == "first", "equals wait for each other's turns"


def test_a_class_far_ahead_of_its_weight_goes_first_as_long_as_it_uses_no_more_than_it_may_claim() -> None:
    assert goes_first(waited_s=3.0, priorities=HIGHER, ahead_s=1.0) == "late"
    assert goes_first(waited_s=3.0, priorities=HIGHER, ahead_s=9.0) == "first"
    assert goes_first(waited_s=3.0, priorities=HIGHER, ahead_s=9.0, within=("late",)) == "late"


def test_a_lower_class_waits_for_higher_ones_but_not_for_ever() -> None:
    waits = {"priorities": HIGHER, "within": ("late",)}
    assert goes_first(waited_s=3.0, first_waited_s=TARGET_S, **waits) == "late"
    assert goes_first(waited_s=3.0, first_waited_s=WAITS * TARGET_S, **waits) == "first"
