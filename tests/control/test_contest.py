"""A class that would be late goes before the one that is next by its weight: with which of its queries."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.queries import learned_query, seen_at, waits

from penstock.control.schedule.contest import Contest
from penstock.control.schedule.snapshot import ClassTraits
from penstock.control.schedule.turns import Turn, Turns
from penstock.control.schedule.urgency import latest_starts
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING
from penstock.vocabulary.moment import Moment

TARGET_S, LENGTH_S = 4.0, 1.0
NOW = Moment(100.0, 1000.0)


def query(cls: str, name: str, known: bool = True, rows: int = 50_000, waited_s: float = 0.0) -> Query:
    made = learned_query(cls, f"{cls}/{name}", known)
    waits(made, rows, NOW.wall_s - waited_s)
    return made


def contest(
    *wanting: Query,
    priorities: dict[str, float] | None = None,
    ahead_s: float = 0.1,
    starts_s: dict[str, float] | None = None,
    within: tuple[str, ...] = (),
) -> Contest:
    """The class `first` is next by its weight, `late` has used more."""
    used = Turns({"first": 1.0, "late": 1.0})
    used.charge("late", ahead_s)
    turns = {name: Turn(LENGTH_S, TARGET_S) for name in ("first", "late")}
    classes = [ClassTraits(name, (priorities or {}).get(name, 1.0), TARGET_S) for name in turns]
    seen = seen_at(wanting, classes, NOW)
    return Contest(
        seen,
        np.ones(len(wanting), np.bool_),
        {},
        turns,
        dict.fromkeys(turns, LENGTH_S),
        used,
        seen.batch_s(seen.turn_s(turns)),
        seen.batch_s(seen.turn_s(turns)),
        lambda: np.array([(starts_s or {}).get(q.key, np.inf) for q in wanting]),
        within,
    )


def able(*wanting: Query) -> set[str]:
    cls, places = contest(*wanting).winner({q.cls for q in wanting})
    assert cls == "late"
    return {wanting[place].key for place in places}


def test_a_class_that_is_in_time_waits_for_its_turn() -> None:
    cls, _ = contest(query("first", "a"), query("late", "b", waited_s=1.0)).winner({"first", "late"})
    assert cls == "first"


def test_the_turn_before_others_is_for_the_queries_that_would_be_late() -> None:
    late, in_time = query("late", "b", waited_s=3.0), query("late", "c", waited_s=0.5)
    assert able(query("first", "a"), late, in_time) == {"late/b"}


def test_a_query_that_is_still_being_learned_has_its_turns_in_a_class_that_is_always_late() -> None:
    late, new = query("late", "b", waited_s=3.0), query("late", "c", known=False, waited_s=9.0)
    assert able(query("first", "a"), late, new) == {"late/b", "late/c"}


def test_windows_are_closed_and_logs_drained_in_a_class_that_always_goes_before_others() -> None:
    late, ticks, drains = query("late", "b", waited_s=3.0), query("late", "c", rows=0), query("late", "d")
    drains.flags.draining = True
    assert able(query("first", "a"), late, ticks, drains) == {"late/b", "late/c", "late/d"}


def test_rows_that_were_old_before_the_last_turn_do_not_make_a_query_go_first() -> None:
    late = query("late", "b", waited_s=60.0)
    late.turn.granted_s = NOW.timer_s - 1.0
    assert contest(query("first", "a"), late).winner({"first", "late"})[0] == "first"
    late.turn.granted_s = NOW.timer_s - 3.0
    assert contest(query("first", "a"), late).winner({"first", "late"})[0] == "late"


HIGHER = {"late": 3.0}


def goes_first(waited_s: float = 0.0, first_waited_s: float = 0.0, **of: Any) -> str | None:
    wanting = (query("first", "a", waited_s=first_waited_s), query("late", "b", waited_s=waited_s))
    return contest(*wanting, **of).winner({"first", "late"})[0]


def test_a_higher_class_whose_batches_would_be_late_together_goes_before_a_lower_one() -> None:
    due_s, batch_s, priority = np.full(2, 2.5), np.full(2, 0.8), np.full(2, 3.0)
    together = {"late/b": float(latest_starts(due_s, batch_s, priority, np.ones(2, np.bool_)).min())}
    assert together["late/b"] < LENGTH_S
    assert goes_first(waited_s=1.0, priorities=HIGHER) == "first", "by itself it would be in time"
    assert goes_first(waited_s=1.0, priorities=HIGHER, starts_s=together) == "late"
    assert goes_first(waited_s=1.0, starts_s=together) == "first", "equals wait for each other's turns"


def test_a_class_far_ahead_of_its_weight_goes_first_as_long_as_it_uses_no_more_than_it_may_claim() -> None:
    assert goes_first(waited_s=3.0, priorities=HIGHER, ahead_s=1.0) == "late"
    assert goes_first(waited_s=3.0, priorities=HIGHER, ahead_s=9.0) == "first"
    assert goes_first(waited_s=3.0, priorities=HIGHER, ahead_s=9.0, within=("late",)) == "late"


def test_a_lower_class_waits_for_higher_ones_but_not_for_ever() -> None:
    higher = {"priorities": HIGHER, "within": ("late",)}
    assert goes_first(waited_s=3.0, first_waited_s=TARGET_S, **higher) == "late"
    assert goes_first(waited_s=3.0, first_waited_s=TUNING.waits * TARGET_S, **higher) == "first"


def test_a_class_whose_batch_is_only_about_to_end_may_be_next_with_no_query_able_yet() -> None:
    cls, places = contest(query("late", "b", waited_s=1.0)).winner({"first", "late"})
    assert (cls, places.size) == ("first", 0)
    assert contest(query("late", "b")).winner(())[0] is None
