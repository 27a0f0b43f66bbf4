"""The figures to which the control plane was tuned, in one place: what each is for, and what was measured.

They are no settings: a user has no reason to change a figure. Benches and tests change figures, to show what
a figure is for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """All figures, with the values that are in force."""

    # -- how rows arrive --------------------------------------------------------------------------
    rate_every_s: float = 0.1
    """Arrival rates are measured over at least this long: over less they show how rows are bunched."""
    rate_memory: float = 0.5
    """The long-term arrival rate forgets about two thirds of the past in this part of the target. It is to
    follow a load that changes before the rows of the change are late."""
    burst: float = 8.0
    """The short-term arrival rate forgets this many times faster than the long-term one."""

    # -- how long turns are -----------------------------------------------------------------------
    slack_fraction: float = 0.05
    """Part of the target that turns leave free for the error of the cost model."""
    least_left: float = 0.1
    """At least this part of a target is left for turns. If the part of a batch without tasks is nearly as
    long as the target, the target cannot be met, and a turn must have a length all the same."""
    full_at: float = 0.8
    """If other queries need the time, a query's batches follow each other after this part of its target. If
    they followed after the whole target, a row that just missed a batch would be late by its own batch."""
    least_fixed: float = 2.0
    """A turn is at least this many fixed costs long. In a shorter turn, most of the time starts the batch."""
    overrun: float = 1.5
    """A turn counts at most this many times its planned length. The rest is owed, and counts with the next
    turns. If the rest were paid at once, a class with a tenth of the weights would wait nine times as long as
    its turn was too long."""
    owed: float = 4.0
    """A class owes at most this many planned lengths. If the machine stood still, no class pays for that."""
    stale_s: float = 0.5
    """A query that has not asked for this long does not want its turn any more."""
    parallel_memory_s: float = 10.0
    """The number of batches that run at once is averaged over this time."""

    divided_at: float = 0.25
    """The time is divided anew between the classes after this part of the shortest target, unless the user
    says how often. A load-management cycle is about a quarter of a target (pham2016 6.2.1)."""
    batch_fixed: float = 1.5
    """A manager plans with batches of at least this many fixed costs, also where a turn is shorter. In such a
    batch a third of the time is for rows. In a shorter one, a row would seem to cost nearly a whole batch."""

    # -- when a batch is worth starting -----------------------------------------------------------
    eager: bool = False
    """Whether a batch is worth starting as soon as one row waits. Benches set it, for rounds in which every
    query has a turn."""
    worth_at: float = 0.5
    """If no other query has work, a batch is worth starting when its oldest row would be done after this part
    of the target."""
    latest_at: float = 0.85
    """If other queries need the time, a query puts its batch off, so that the batch is fuller. It waits until
    a batch of a lower class, run before, would bring its oldest row to this part of the target. A higher
    class goes before a lower class only if rows would be lost, at 1 - `slack_fraction`. When `latest_at`
    decided about that, too, a higher class ran its batches early while a lower class was losing rows (seen in
    `spark/dilos`)."""
    look_every_s: float = 0.02
    """A contest that no query won is held again this long after the contest, if new rows have arrived. With
    thirty queries a contest takes a millisecond. Contests for every arrival took a tenth of two cores."""

    ask_again_fraction: float = 0.1
    """A manager that decides periodically is asked only after a whole turn interval. The interval changes
    with the waiting rows, so it is planned again once this part of its rest has passed. When it was planned
    every 20 ms, planning took most of the CPU time of a control plane with such managers."""
    look_fraction: float = 0.02
    """If the next batch is put off for long, new rows lead to a contest only once this part of the wait has
    passed. A query that waits for 20 s is not looked at a thousand times."""
    least_wait_s: float = 0.001
    """If nothing happens, a contest that no query won is not held again sooner than this. Rounding could
    otherwise name the same moment again."""

    # -- who goes first ---------------------------------------------------------------------------
    ahead: float = 0.5
    """A class that would be late goes before a class of its own priority, or of a higher one, only if it is
    ahead of its weight by at most this many rounds of its queries."""
    ahead_of_lower: float = 1.5
    """The same limit before a class of a lower priority."""
    waits: float = 1.5
    """While queries of a higher priority would be late, a query waits for its turn at most this many targets.
    If the batches of all queries do not fit into their targets, the lowest class has fewer turns and loses
    more rows."""

    # -- batches that overlap at their ends -------------------------------------------------------
    overlap_fixed: float = 1.0
    """A batch is granted this many of its fixed costs before the running batch is expected to end: about as
    long as a start and an end leave the cores idle. With a longer overlap, batches fight for the cores.
    The load of `make demo` admitted 0.65 to 0.73 of the capacity without overlap, 0.79 to 0.87 with one fixed
    cost, 0.60 to 0.75 with three; bench/spark/README.md has the runs."""
    guessed_overlap_fixed: float = 0.5
    """The same if the driver does not say when last stages start, so that a batch that comes early cannot be
    held back. If the running batch takes longer than expected, its last stage waits until the tasks of the
    early batch are done. (In a demo, the next batch came too early for 45 batches. 7 of them took half as
    long again, or longer.)"""
    tail_memory_batches: float = 3.0
    """The learned part of a batch that its last stage takes is mostly forgotten after this many batches."""

    # -- batches that run beside each other on cores -----------------------------------------------
    task_s: float = 0.05
    """A read task is worth its start if it has this much work."""
    queue_s: float = 0.05
    """Tasks of a batch may wait this long for a core. If they came just when cores are expected to be free,
    cores would be idle whenever a batch is planned a little later than usual."""
    narrow: float = 1 / 3
    """A batch takes at least this part of its turn interval, on as few cores as that allows. Each task has a
    cost, so few long tasks do more than many short ones; but rows wait for as long as their batch takes."""
    learning_s: float = 0.5
    """How long tasks of a batch take at most while the cost of its rows is being learned."""
    learning_tasks: int = 4
    """How many tasks such a batch has: always as many, so that only rows make batches differ."""
    first_work_rows: int = 100
    """The most rows of a query's first batch. A row may cost ten milliseconds or more."""
    first_growth: float = 16.0
    """While its cost is being learned, a batch has at most this many times the rows of the largest one
    before."""
    task_overheads: float = 4.0
    """A task has at least this many times the work of its start: if starts take long, fewer tasks are better.
    """
    work_memory_batches: float = 8.0
    """What the tasks of a batch took is half forgotten after this many batches."""
    work_outlier_ratio: float = 2.0
    """A batch that took more than this many times as long as expected counts less."""
    work_stays: float = 0.05
    """How strongly the costs of a start and of a row stay where they are if batches do not tell them apart,
    as a part of what one of the two alone would explain."""
    work_hope: float = 0.7
    """For the first batches, the cost of a row that they cannot tell stays at this part of itself."""
    work_young_batches: int = 16
    """These are the first batches."""
    work_least: float = 0.5
    """The cost of a row falls at most to this part of itself with one batch."""
    cold_batches: int = 1
    """The first batches of a query start workers and compile code: they bound the cost of a row, no more."""
    told_by_rows: float = 2.0
    """Two batches may show the effect of rows if one has this many times the rows of the other."""
    told_by_time: float = 1.5
    """They show it if that batch also took this many times as long."""
    told_points: int = 4
    """So many batches, the last ones, tell together what rows cost; earlier ones are forgotten."""
    told_within: float = 0.3
    """And all of the last batches differ from a line by at most this part of themselves."""
    told_at_last: int = 16
    """After so many batches without such a line, half of what a batch takes counts as fixed. A query that
    never has more rows must have some cost, and a larger batch corrects it later."""
    stretch_memory_batches: float = 8.0
    """Batches after which it is half forgotten how much longer tasks take than their work."""
    most_stretch: float = 4.0
    """If tasks took longer than this many times their work, it was not other batches that delayed them."""
    unknown_core_s: float = 0.5
    """Core seconds that a batch counts for whose cost is not known yet."""

    # -- how large a grant is ---------------------------------------------------------------------
    first_rows: int = 1000
    """The most rows of a query's first batches, about whose cost nothing is known."""
    growth: float = 4.0
    """A batch has at most this many times the rows of the largest batch before it."""
    old_targets: float = 10.0
    """Rows this many targets old are late for another reason than overload: the log says so once."""
    stuck_targets: float = 10.0
    """A batch that has run for this many targets is named in the log and in reports: some tasks never end."""
    stuck_least_s: float = 30.0
    """The same with very short targets: a batch is not named before."""

    # -- what a class sheds -----------------------------------------------------------------------
    smaller: int = 4
    """Retries with a smaller capacity when the batch that a shedder chose would exceed the growth limit."""
    expected_batches: int = 8
    """The rows that another query will have at its turn are shown to a shedder as this many batches."""
    made_up: float = 0.5
    """At one turn a query makes up for this part of its distance to the mean level. If it made up for all of
    it, queries would swing where a window has few turns: after a rich batch come poor batches, and long
    batches make other queries late. (Thirteen queries at five times the capacity, four turns a window:
    Jain's index of windows 0.981 with all, 0.991 with half, 0.979 with three tenths; bench/spark/README.md
    has more.) A query whose stream others read is not damped: its own rows do not say how much it needs for
    its readers."""
    longest: float = 2.0
    """A batch that makes up for what its query lacks is at most this many turns long: other queries wait for
    its end."""

    # -- what is said -----------------------------------------------------------------------------
    feasibility_every_s: float = 2.0
    """So often it is checked whether targets can be met, for a warning that is said once. The check sums over
    all queries, and costs change with batches, which take seconds."""


TUNING = Tuning()

LEAST_SHARE = 1e-3
"""Part of the capacity below which a share counts as none. A manager multiplies its headroom by the ratio of
two shares: with a share of 0 it would have nothing for ever. Nobody tunes this figure: it is a guard."""
