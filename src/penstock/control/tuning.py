"""The figures that the control plane was tuned with, in one place: what each is for, and what was measured.

They are no settings: a user has no reason to change one. Benches and tests may, to show what a figure is for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """All of them, with the values that are in force."""

    # -- how rows arrive --------------------------------------------------------------------------
    rate_every_s: float = 0.1
    """Arrival rates are taken over at least this long: over a shorter time they say how rows are bunched."""
    burst: float = 8.0
    """The short-term arrival rate forgets this many times faster than the long-term one."""

    # -- how long turns are -----------------------------------------------------------------------
    slack_fraction: float = 0.05
    """Part of the target that turns leave free for the error of the cost model."""
    full_at: float = 0.8
    """Where others need the time, a query's batches follow each other after so much of its target: after all
    of it, a row that just missed a batch would be late by the batch that takes it."""
    least_fixed: float = 2.0
    """A turn is at least so many times the fixed cost: below it, starting batches would take most of it."""
    overrun: float = 1.5
    """Times its planned length that a turn counts at most; the rest is owed, and counts with the next turns.
    Paid at once, a class with a tenth of the weights would wait nine times as long as it took too long."""
    owed: float = 4.0
    """Planned lengths that a class owes at most: what a machine took that stood still, nobody pays for."""
    stale_s: float = 0.5
    """A query that has not asked for so long does not want its turn any more."""
    parallel_memory_s: float = 10.0
    """Over so long the number of batches that run at once is averaged."""

    # -- when a batch is worth starting -----------------------------------------------------------
    worth_at: float = 0.5
    """Where no other query has work, a batch is worth starting when its oldest row would be done after this
    part of the target."""
    latest_at: float = 0.85
    """Where others need the time, batches are put off, and fuller, until one of a lower class before them
    would bring their oldest row to this part of the target. A higher class goes before a lower one only if
    rows would be lost, at 1 - `slack_fraction`. When this mark decided about that, too, a higher class ran
    its batches early while a lower one was losing rows (seen in `spark/dilos`)."""
    look_every_s: float = 0.02
    """A contest that nobody won is held again this long after new rows arrived. With thirty queries a contest
    takes a millisecond; held for every arrival, contests took a tenth of two cores."""

    ask_again_fraction: float = 0.1
    """A manager that decides periodically is asked only after a whole cycle of turns. The length of the cycle
    changes with what waits, so it is planned again once this part of the rest has passed. Planned every 20 ms
    instead, these cycles took most of the CPU time of a control plane with such managers."""
    look_fraction: float = 0.02
    """Where the next batch is put off for long, the contest is held again, after new rows arrived, once this
    part of the wait has passed: a query that waits for 20 s is not looked at a thousand times."""
    least_wait_s: float = 0.001
    """A contest that nobody won is not held again sooner, if nothing happens: rounding could name the same
    moment again."""

    # -- who goes first ---------------------------------------------------------------------------
    ahead: float = 0.5
    """Rounds of its queries that a class may be ahead of its weight and still go first if it would be late,
    before a class of its own priority or of a higher one."""
    ahead_of_lower: float = 1.5
    """The same before a class of a lower priority."""
    waits: float = 1.5
    """Times its target that a query waits for its turn while queries of a higher priority would be late.
    Where the batches of all queries do not fit into their targets, the lowest class has fewer turns and loses
    more rows."""

    # -- batches that overlap at their ends -------------------------------------------------------
    overlap_fixed: float = 1.0
    """A batch is granted so many of its fixed costs before the one that runs is expected to end: about as
    long as a start and an end leave the cores idle. Longer overlaps make batches fight for the cores.
    The load of `make demo` admitted 0.65 to 0.73 of the capacity without overlap, 0.79 to 0.87 with one fixed
    cost, 0.60 to 0.75 with three; bench/spark/README.md has the runs."""
    guessed_overlap_fixed: float = 0.5
    """The same where the driver does not say when last stages start, so that nothing holds back a batch that
    comes early: should the one that runs take longer than expected, its last stage waits until the other's
    tasks are done. (Of 45 batches of a demo whose next batch was granted too early, 7 took half as long again
    for that, and more.)"""
    tail_memory_batches: float = 3.0
    """Batches after which the part of a batch that its last stage takes is mostly forgotten."""

    # -- how large a grant is ---------------------------------------------------------------------
    first_rows: int = 1000
    """Rows of a query's first batch, about whose cost nothing is known."""
    growth: float = 4.0
    """A batch has at most so many times the rows of the largest before it."""
    old_targets: float = 10.0
    """Rows so many targets old are not late because of an overload: that is said once."""

    # -- what a class sheds -----------------------------------------------------------------------
    smaller: int = 4
    """Retries with a smaller capacity when the batch that a shedder chose would exceed the growth limit."""
    expected_batches: int = 8
    """In so many batches the rows count that another query will have at its turn."""
    made_up: float = 0.5
    """Of what a query is behind or ahead of the others, this part is made up for at one turn. All of it makes
    queries swing where a window has few turns: after a rich batch come poor ones, and long batches make
    others late. (Thirteen queries at five times the capacity, four turns a window: Jain's index of windows
    0.981 with all, 0.991 with half, 0.979 with three tenths; bench/spark/README.md has more.) A query that
    others read is not damped: its own rows do not say how much it needs for them."""
    longest: float = 2.0
    """Turns that a batch has at most where what one query lacks is made up for: the others wait for its
    end."""


TUNING = Tuning()
