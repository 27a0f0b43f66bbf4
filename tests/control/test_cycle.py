"""The control cycle: what is applied, what is refused, what a dry run does; and the test doubles."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.decide.cycle import Cycle, SafetyLimits, Step
from penstock.testing import ManualClock, RecordingPlant, ScriptedManager, ScriptedPlant, observation
from penstock.vocabulary.errors import InvalidInputError, PenstockError
from penstock.vocabulary.model import Admission, Decision, Expected, Observation

HALF = Decision(1, 0.5, "too much", Expected(2.0, 50.0), headroom=0.9)
GRANTED = replace(HALF, grant=Admission(cut_s=0.9, shed_before_s=0.2, keep_fraction=0.5))


class RecordingRecorder:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def record(self, step: Step) -> None:
        self.steps.append(step)


def seconds(count: int) -> list[Observation]:
    return [observation(id=i, now_s=float(i)) for i in range(1, count + 1)]


def step_on(
    proposed: Decision, limits: SafetyLimits | None = None, dry_run: bool = False
) -> tuple[Step, Decision]:
    """One step on observation 1 at 1 s, and what the plant got."""
    plant = ScriptedPlant(seconds(1))
    step = Cycle(plant, ScriptedManager([proposed]), limits or SafetyLimits(), dry_run).step()
    assert step is not None
    return step, plant.applied[0]


def after_a_good_one(bad: Decision, good: Decision = HALF) -> Step:
    """The step of a bad decision on observation 2."""
    plant = ScriptedPlant(seconds(2))
    cycle = Cycle(plant, ScriptedManager([good, bad]))
    cycle.step()
    step = cycle.step()
    assert step is not None
    assert plant.applied == [good, step.applied]
    return step


@pytest.mark.parametrize(
    "decision", [HALF, GRANTED, replace(GRANTED, grant=Admission(-math.inf, -math.inf, 1.0))]
)
def test_a_decision_in_order_is_applied_as_it_is(decision: Decision) -> None:
    step, applied = step_on(decision, SafetyLimits(0.5))
    assert applied is decision
    assert step.proposed is decision
    assert step.notes == ()


def test_the_cycle_runs_until_the_plant_is_over_and_tells_every_step() -> None:
    plant, recorder, told = ScriptedPlant(seconds(3)), RecordingRecorder(), []
    manager = ScriptedManager([replace(HALF, observation_id=i) for i in (1, 2, 3)])
    assert Cycle(plant, manager, recorder=recorder).run(told.append) == 3
    assert [step.observation.id for step in told] == [1, 2, 3]
    assert [decision.observation_id for decision in plant.applied] == [1, 2, 3]
    assert all(a is b for a, b in zip(recorder.steps, told, strict=True))


def test_a_plant_that_is_over_gives_no_step() -> None:
    assert Cycle(ScriptedPlant([]), ScriptedManager([])).step() is None
    assert Cycle(ScriptedPlant([]), ScriptedManager([])).run() == 0


@pytest.mark.parametrize(
    ("bad", "note"),
    [
        (replace(HALF, keep_fraction=1.1), "refused: keep fraction 1.1 is not in [0, 1]"),
        (replace(HALF, keep_fraction=-0.1), "refused: keep fraction -0.1 is not in [0, 1]"),
        (replace(HALF, keep_fraction=math.nan), "refused: keep fraction nan is not in [0, 1]"),
        (
            replace(HALF, shed_load_s=-1.0),
            "refused: load to shed -1.0 s is not a finite number of at least 0",
        ),
        (
            replace(HALF, shed_load_s=math.inf),
            "refused: load to shed inf s is not a finite number of at least 0",
        ),
        (
            replace(HALF, shed_load_s=math.nan),
            "refused: load to shed nan s is not a finite number of at least 0",
        ),
        (
            replace(HALF, grant=Admission(0.0, 0.0, 2.0)),
            "refused: grant's keep fraction 2.0 is not in [0, 1]",
        ),
        (replace(HALF, grant=Admission(math.nan, 0.0, 1.0)), "refused: grant's times are not numbers"),
        (replace(HALF, grant=Admission(0.0, math.nan, 1.0)), "refused: grant's times are not numbers"),
    ],
)
def test_an_unusable_decision_is_refused_and_the_previous_stays_in_force(bad: Decision, note: str) -> None:
    step = after_a_good_one(replace(bad, observation_id=2))
    assert step.notes == (note,)
    assert step.proposed.keep_fraction is bad.keep_fraction
    reason = "too much (refused, the previous decision stays in force)"
    assert step.applied == replace(HALF, observation_id=2, reason=reason)


def test_a_decision_on_another_observation_is_refused() -> None:
    assert after_a_good_one(HALF).notes == ("refused: decided on observation 1, not on 2",)


def test_every_fault_of_a_decision_gets_its_note() -> None:
    step = after_a_good_one(Decision(7, 2.0, "broken", shed_load_s=-1.0))
    assert len(step.notes) == 3


def test_load_that_was_shed_is_not_shed_again_when_the_next_decision_is_refused() -> None:
    step = after_a_good_one(Decision(2, math.nan, "broken"), replace(HALF, shed_load_s=3.0))
    assert step.applied.shed_load_s == 0.0
    assert step.applied.keep_fraction == 0.5


def test_a_first_decision_that_is_refused_sheds_nothing() -> None:
    _, applied = step_on(Decision(1, math.nan, "broken", grant=Admission(0.5, -math.inf, 1.0)))
    assert (applied.observation_id, applied.keep_fraction, applied.grant) == (1, 1.0, None)


def test_the_decision_after_a_refused_one_is_applied_again() -> None:
    plant = ScriptedPlant(seconds(3))
    manager = ScriptedManager([HALF, Decision(2, math.nan, "broken"), Decision(3, 0.7, "better")])
    Cycle(plant, manager).run()
    assert [decision.keep_fraction for decision in plant.applied] == [0.5, 0.5, 0.7]


def test_a_keep_fraction_below_the_limit_is_raised_and_so_is_the_grants() -> None:
    step, applied = step_on(GRANTED, SafetyLimits(min_keep_fraction=0.6))
    assert applied == replace(GRANTED, keep_fraction=0.6, grant=Admission(0.9, 0.2, 0.6))
    assert step.notes == (
        "keep fraction raised from 0.5 to the limit of 0.6",
        "grant's keep fraction raised from 0.5 to the limit of 0.6",
    )


@pytest.mark.parametrize("cut_s", [1.5, math.inf])
def test_a_grant_that_cuts_in_the_future_is_cut_now(cut_s: float) -> None:
    step, applied = step_on(replace(GRANTED, grant=Admission(cut_s, 0.2, 0.5)))
    assert applied == replace(GRANTED, grant=Admission(1.0, 0.2, 0.5))
    assert step.notes == (f"grant's cut moved from {cut_s:g} s to now, 1 s",)


def test_every_note_is_logged_with_its_class_and_observation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="penstock.control.decide.cycle"):
        step_on(HALF, SafetyLimits(min_keep_fraction=0.6))
    assert caplog.messages == ["class gold, observation 1: keep fraction raised from 0.5 to the limit of 0.6"]


@given(
    keep=st.floats(),
    shed_load_s=st.floats(),
    grant=st.none() | st.builds(Admission, st.floats(), st.floats(), st.floats()),
    floor=st.floats(0, 1),
)
def test_whatever_is_proposed_what_is_applied_is_safe(
    keep: float, shed_load_s: float, grant: Admission | None, floor: float
) -> None:
    proposed = Decision(1, keep, "anything", shed_load_s=shed_load_s, grant=grant)
    step, applied = step_on(proposed, SafetyLimits(floor))
    assert floor <= applied.keep_fraction <= 1.0
    assert 0.0 <= applied.shed_load_s < math.inf
    assert applied.observation_id == 1
    if applied.grant is not None:
        assert applied.grant.cut_s <= 1.0
        assert floor <= applied.grant.keep_fraction <= 1.0
    assert (applied is proposed) == (not step.notes)


def test_a_dry_run_decides_but_sheds_nothing() -> None:
    step, applied = step_on(replace(HALF, shed_load_s=2.0), dry_run=True)
    assert step.dry_run
    assert step.proposed.keep_fraction == 0.5
    assert applied == Decision(1, 1.0, "too much (dry run, nothing shed)", headroom=0.9)


def test_a_dry_run_grants_everything_that_waits_where_the_manager_gives_grants() -> None:
    _, applied = step_on(GRANTED, dry_run=True)
    assert applied.grant == Admission(cut_s=1.0, shed_before_s=-math.inf, keep_fraction=1.0)
    assert applied.keep_fraction == 1.0


def test_a_dry_run_still_says_what_the_check_would_have_done() -> None:
    step, applied = step_on(Decision(1, math.nan, "broken"), dry_run=True)
    assert step.notes == ("refused: keep fraction nan is not in [0, 1]",)
    assert applied.keep_fraction == 1.0


def test_a_manager_that_raises_is_heard_and_applies_nothing() -> None:
    plant, recorder = ScriptedPlant(seconds(2)), RecordingRecorder()
    cycle = Cycle(plant, ScriptedManager([HALF]), recorder=recorder)
    with pytest.raises(PenstockError, match="has a decision for every observation; got: 1 decisions"):
        cycle.run()
    assert len(plant.applied) == len(recorder.steps) == 1


def test_a_plant_that_fails_on_a_decision_leaves_it_recorded() -> None:
    class FailingPlant(ScriptedPlant):
        def apply(self, decision: Decision) -> None:
            raise OSError("the engine is gone")

    recorder = RecordingRecorder()
    with pytest.raises(OSError, match="the engine is gone"):
        Cycle(FailingPlant(seconds(1)), ScriptedManager([HALF]), recorder=recorder).step()
    assert recorder.steps[0].applied is HALF


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_a_limit_that_is_no_fraction_is_rejected(fraction: float) -> None:
    with pytest.raises(InvalidInputError, match="min_keep_fraction must lie between 0 and 1"):
        SafetyLimits(fraction)


def test_a_manual_clock_moves_forward_when_told() -> None:
    clock = ManualClock(5.0)
    assert clock.advance(0.5) == clock.now_s == 5.5
    for by_s in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidInputError, match="time goes forward"):
            clock.advance(by_s)


def test_a_recording_plant_passes_on_what_it_keeps() -> None:
    inner = ScriptedPlant(seconds(1))
    plant = RecordingPlant(inner)
    Cycle(plant, ScriptedManager([HALF])).run()
    assert [seen.id for seen in plant.observations] == [1]
    assert plant.applied == inner.applied == [HALF]


def test_a_scripted_manager_goes_on_from_its_snapshot_and_keeps_what_it_saw() -> None:
    script = [HALF, replace(HALF, observation_id=2)]
    first, second = ScriptedManager(script), ScriptedManager(script)
    first.decide(observation())
    second.restore(first.snapshot())
    assert second.decide(observation(id=2)) is script[1]
    assert [seen.id for seen in second.observed] == [2]
