"""Old keys that only benches had a use for: they hold for one more release, and a line says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.flow import CapacityConfig, ClassConfig, FlowConfig, load_flow_config
from penstock.config.old_shedding import both_changes
from penstock.control.core.engine import Engine
from penstock.policies.capacity.dilos import Dilos
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.moment import Moment

LEND = "leave it out; to keep more, set lendable_fraction of the class"
SHORTER = "leave it out; to have batches earlier, set a shorter target"
STREAM = "leave it out; key_buckets of the stream decides, and this key has no effect"
COHORT = {"by": "key", "within": "class"}


def flow(shed: Any = "sample", **capacity: Any) -> FlowConfig:
    classes = {"gold": {"target": "8s", "shed": shed}}
    return load_flow_config({"log": "logs", "classes": classes, "capacity": capacity})


def is_eager(config: FlowConfig) -> bool:
    return Engine(config, Moment(0.0, 0.0)).classes.scheduler._eager


def test_a_reserve_still_holds_and_one_line_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    policy = flow(reserve_fraction=0.2).capacity.build_policy()
    assert isinstance(policy, Dilos)
    assert policy.reserve_fraction == 0.2
    assert caplog.messages == [f"the flow: capacity.reserve_fraction is old: {LEND}"]


def test_eager_batches_still_hold_and_one_line_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    assert is_eager(flow(batches="eager"))
    assert caplog.messages == [f"the flow: capacity.batches is old: {SHORTER}"]
    assert not is_eager(flow(batches="full"))
    assert len(caplog.messages) == 2, "the other value is to be left out, too"


def test_without_old_keys_nothing_is_said_and_the_papers_reserve_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = flow(policy="dilos").capacity.build_policy()
    assert isinstance(policy, Dilos)
    assert policy.reserve_fraction == 0.05
    assert not is_eager(flow())
    assert caplog.messages == []


def test_another_process_gets_old_keys_if_they_were_written_and_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = flow(reserve_fraction=0.2, batches="eager")
    caplog.clear()
    assert FlowConfig.from_json(written.to_json()) == written
    assert written.model_dump()["capacity"]["batches"] == "eager"
    assert flow().model_dump()["capacity"] == {"policy": "dilos", "every_s": None}
    assert FlowConfig.from_json(flow().to_json()) == flow()
    assert caplog.messages == []


def test_an_earlier_penstocks_configuration_is_taken_and_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = (
        '{"log": "logs", "classes": {"gold": {"target": 2.0, "shed": {"by": "key", "otherwise": "sample", '
        '"within": "class", "buckets": 256}}}, "capacity": {"policy": "dilos", "reserve_fraction": 0.05, '
        '"every": null, "batches": "full"}}'
    )
    config = FlowConfig.from_json(text)
    assert config.classes["gold"] == ClassConfig(target_s=2.0, shed=COHORT)  # type: ignore[arg-type]
    assert caplog.messages == []


def test_buckets_have_no_effect_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert flow({**COHORT, "buckets": 64}) == flow(COHORT)
    assert caplog.messages == [f"the flow: shed.buckets is old: {STREAM}"]


def test_a_change_of_a_class_may_have_the_old_key(caplog: pytest.LogCaptureFixture) -> None:
    gold, old = ClassConfig(target_s=2.0), {"shed": {**COHORT, "buckets": 64}}
    assert gold.changed(old).shed == gold.changed({"shed": COHORT}).shed
    assert caplog.messages == [f"the class: shed.buckets is old: {STREAM}"]
    assert both_changes(old, {"sampling": "row"})["shed"] == {**COHORT, "otherwise": "row"}


@pytest.mark.parametrize("capacity", [{"reserve_fraction": 2}, {"batches": "greedy"}], ids=str)
def test_a_mistake_in_an_old_key_is_refused_as_before(capacity: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"capacity.{next(iter(capacity))} must be"):
        flow(**capacity)


def test_other_kinds_of_shedding_have_no_buckets() -> None:
    with pytest.raises(InvalidInputError, match="buckets"):
        flow({"by": "random", "buckets": 64})


def test_a_part_by_itself_has_no_file_to_name(caplog: pytest.LogCaptureFixture) -> None:
    CapacityConfig(batches="eager")
    assert caplog.messages == [f"capacity.batches is old: {SHORTER}"]
