"""The run directory: what is recorded is read back, also after a crash."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.effort import tries

from penstock import __version__
from penstock.control.decide.cycle import Cycle, SafetyLimits, Step
from penstock.record.layout import OBSERVATION_SCHEMA, decode_decision, dump_json, encode_decision
from penstock.record.reading import read_run
from penstock.record.recording import LiveRecorder
from penstock.record.rundir import RunDirectory
from penstock.testing import ScriptedManager, ScriptedPlant, observation
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import (
    Admission,
    BatchTiming,
    Decision,
    DelayStats,
    Expected,
    Observation,
    WaitingRows,
)

CONFIG: dict[str, object] = {"manager": "ctrl", "streams": ["readings"], "target_s": 2.0}

arrays = hnp.arrays(np.float64, st.integers(0, 5), elements=st.floats())
counts = st.integers(0, 2**63 - 1)
unknown = st.none() | st.floats()
number = st.floats()
observations = st.builds(
    Observation,
    id=counts,
    cls=st.text(),
    now_s=number,
    period_s=number,
    delay_target_s=number,
    keep_fraction=number,
    offered_rows=counts,
    admitted_rows=counts,
    shed_rows=counts,
    departed_rows=counts,
    waiting_rows=counts,
    offered_load=number,
    queued_load_s=number,
    network_load_s=number,
    cost_per_row_s=unknown,
    work_s=number,
    busy_s=number,
    delay=st.builds(DelayStats, counts, unknown, unknown, unknown, unknown, unknown),
    output_delay_s=arrays,
    waiting=st.builds(WaitingRows, arrays, arrays),
    batch=st.none() | st.builds(BatchTiming, number, number, number, number),
)
decisions = st.builds(
    Decision,
    counts,
    number,
    st.text(),
    st.builds(Expected, unknown, unknown),
    number,
    st.none() | st.builds(Admission, number, number, number),
    unknown,
)


def assert_equal(first: object, second: object) -> None:
    """Field by field: `==` of observations asks arrays for one truth, and NaN is not equal to itself."""
    assert type(first) is type(second)
    for field in fields(first):  # type: ignore[arg-type]
        before, after = getattr(first, field.name), getattr(second, field.name)
        if isinstance(before, DelayStats | WaitingRows | BatchTiming):
            assert_equal(before, after)
        elif isinstance(before, np.ndarray):
            assert after.dtype == np.float64
            np.testing.assert_array_equal(after, before)
        else:
            assert type(before) is type(after), field.name
            assert before == after or (math.isnan(before) and math.isnan(after)), field.name


def step_of(seen: Observation, proposed: Decision | None = None) -> Step:
    proposed = proposed or Decision(seen.id, 0.5, "half")
    return Step(seen, proposed, proposed, (), False)


def record(path: Path, rows: int, batch_rows: int = 4) -> list[Observation]:
    seen = [
        observation(id=i, now_s=i / 2, output_delay_s=np.array([0.1 * i, np.nan])) for i in range(1, rows + 1)
    ]
    with RunDirectory.create(path, CONFIG, batch_rows) as run:
        for one in seen:
            run.record(step_of(one))
    return seen


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "decisions.jsonl").read_text().splitlines()]


@settings(max_examples=tries(20, 100))
@given(seen=st.lists(observations, max_size=7), batch_rows=st.integers(1, 4))
def test_observations_are_read_back_as_they_were(seen: list[Observation], batch_rows: int) -> None:
    with TemporaryDirectory() as path:
        with RunDirectory.create(path, {}, batch_rows) as run:
            for one in seen:
                run.record(step_of(one))
        recorded = read_run(path)
    assert not recorded.truncated
    assert len(recorded.observations) == len(seen)
    for before, after in zip(seen, recorded.observations, strict=True):
        assert_equal(before, after)


@given(decision=decisions)
def test_decisions_survive_json_with_infinities_and_nan(decision: Decision) -> None:
    encoded = encode_decision(decision)
    after = decode_decision(json.loads(dump_json(encoded), parse_constant=pytest.fail))
    assert encode_decision(after) == encoded
    if "NaN" not in dump_json(encoded):
        assert after == decision


def test_every_field_of_an_observation_has_its_column() -> None:
    assert OBSERVATION_SCHEMA.names == [field.name for field in fields(Observation)]


def test_a_decision_line_says_what_was_seen_proposed_and_applied(tmp_path: Path) -> None:
    plant = ScriptedPlant([observation(id=i, now_s=float(i)) for i in (1, 2)])
    grant = Admission(-math.inf, -math.inf, 1.0)
    first = Decision(1, 0.25, "much", Expected(2.0, 9.0), headroom=0.9)
    manager = ScriptedManager([first, Decision(2, 1.0, "little", grant=grant)])
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        Cycle(plant, manager, SafetyLimits(0.5), recorder=run).run()
    raised, plain = lines_of(tmp_path / "run")
    proposed = {
        "observation_id": 1,
        "keep_fraction": 0.25,
        "reason": "much",
        "expected": {"delay_s": 2.0, "admitted_rows": 9.0},
        "shed_load_s": 0.0,
        "grant": None,
        "headroom": 0.9,
    }
    assert raised == {
        "observation_id": 1,
        "cls": "gold",
        "now_s": 1.0,
        "proposed": proposed,
        "applied": {**proposed, "keep_fraction": 0.5},
        "notes": ["keep fraction raised from 0.25 to the limit of 0.5"],
        "dry_run": False,
    }
    assert "applied" not in plain
    assert plain["proposed"]["grant"] == {  # type: ignore[index]
        "cut_s": "-Infinity",
        "shed_before_s": "-Infinity",
        "keep_fraction": 1.0,
        "limit_rows": None,
    }
    assert read_run(tmp_path / "run").decisions == [first, Decision(2, 1.0, "little", grant=grant)]


def test_a_decision_is_on_disk_before_the_run_ends_and_observations_follow_in_batches(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", CONFIG, batch_rows=2)
    for i in (1, 2, 3):
        run.record(step_of(observation(id=i)))
    alive = read_run(tmp_path / "run")
    assert alive.truncated
    assert [seen.id for seen in alive.observations] == [1, 2]
    assert [decision.observation_id for decision in alive.decisions] == [1, 2, 3]
    run.close()
    run.close()
    assert [seen.id for seen in read_run(tmp_path / "run").observations] == [1, 2, 3]


def test_a_run_that_ends_in_an_error_is_whole_up_to_there(tmp_path: Path) -> None:
    def fail_inside() -> None:
        with RunDirectory.create(tmp_path / "run", CONFIG) as run:
            run.record(step_of(observation(id=1)))
            raise OSError("the engine is gone")

    with pytest.raises(OSError, match="the engine is gone"):
        fail_inside()
    recorded = read_run(tmp_path / "run")
    assert not recorded.truncated
    assert [seen.id for seen in recorded.observations] == [1]


def test_what_is_recorded_later_does_not_change_with_the_plants_arrays(tmp_path: Path) -> None:
    reused = np.array([1.0])
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        run.record(step_of(observation(output_delay_s=reused)))
        reused[0] = 2.0
    assert read_run(tmp_path / "run").observations[0].output_delay_s.tolist() == [1.0]


def test_observations_cut_off_at_any_byte_are_read_up_to_the_last_whole_batch(tmp_path: Path) -> None:
    seen = record(tmp_path / "run", rows=10, batch_rows=4)
    file = tmp_path / "run" / "observations.arrows"
    whole = file.read_bytes()
    found = set()
    for size in (*range(0, len(whole) - 16, 31), len(whole) - 16, len(whole) - 4):
        file.write_bytes(whole[:size])
        recorded = read_run(tmp_path / "run")
        assert recorded.truncated
        found.add(len(recorded.observations))
        for before, after in zip(seen, recorded.observations, strict=False):
            assert_equal(before, after)
    assert found == {0, 4, 8, 10}  # 10: only the end mark is missing


def test_a_stream_cut_exactly_between_two_batches_is_known_to_be_cut(tmp_path: Path) -> None:
    record(tmp_path / "run", rows=8, batch_rows=4)
    file = tmp_path / "run" / "observations.arrows"
    file.write_bytes(file.read_bytes()[:-8])
    recorded = read_run(tmp_path / "run")
    assert recorded.truncated
    assert len(recorded.observations) == 8


def test_decisions_cut_off_at_any_byte_are_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    record(tmp_path / "run", rows=3)
    file = tmp_path / "run" / "decisions.jsonl"
    whole = file.read_bytes()
    for size in range(0, len(whole), 3):
        file.write_bytes(whole[:size])
        recorded = read_run(tmp_path / "run")
        assert recorded.truncated
        assert len(recorded.decisions) == whole[:size].count(b"\n")


def test_the_configuration_and_the_writers_version_are_read_back(tmp_path: Path) -> None:
    record(tmp_path / "deep" / "down" / "run", rows=1)
    recorded = read_run(str(tmp_path / "deep" / "down" / "run"))
    assert recorded.config == CONFIG
    assert recorded.penstock_version == __version__
    assert json.loads((tmp_path / "deep" / "down" / "run" / "config.json").read_text())["format"] == 5


def test_a_report_is_written_once_also_after_the_end(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        pass
    run.write_report({"shed": np.int64(3), "delays_s": np.array([0.5]), "max_s": math.inf})
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report == {"shed": 3, "delays_s": [0.5], "max_s": "Infinity"}
    with pytest.raises(InvalidInputError, match=r"a run has one report; got: .*report\.json"):
        run.write_report({})


def test_an_empty_directory_is_taken_and_a_used_one_refused_untouched(tmp_path: Path) -> None:
    record(tmp_path, rows=1)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InvalidInputError, match=r"new or empty directory.*never overwritten: name another"):
        RunDirectory.create(tmp_path, CONFIG)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_file_is_not_taken_for_a_directory(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InvalidInputError, match="new or empty directory"):
        RunDirectory.create(tmp_path / "run", CONFIG)


def test_keys_that_penstock_writes_are_reserved(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match="leaves format and penstock_version to Penstock; got: format"
    ):
        RunDirectory.create(tmp_path / "run", {"format": 7})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [Path("x"), {1: "one"}, {"set"}])
def test_what_is_not_json_is_refused_before_anything_is_written(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidInputError, match="mappings with string keys, lists, strings and numbers"):
        RunDirectory.create(tmp_path / "run", {"value": [value]})
    assert not (tmp_path / "run").exists()


def test_a_closed_run_directory_records_no_more(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        pass
    with pytest.raises(InvalidInputError, match="a run directory records until it is closed"):
        run.record(step_of(observation()))


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"without config\.json, observations\.arrows, decisions"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"format": 6}', "this Penstock reads runs up to format 5; got: 6; hint: read it with a newer"),
        ('{"format": "1"}', r"config\.json states the format of its run; got: '1'"),
        ("{}", r"config\.json states the format of its run; got: None"),
        ("[1]", r"config\.json states the format of its run; got: None"),
        ('{"format"', r"config\.json is JSON; got"),
    ],
)
def test_a_configuration_of_another_kind_is_refused(tmp_path: Path, config: str, message: str) -> None:
    record(tmp_path / "run", rows=1)
    (tmp_path / "run" / "config.json").write_text(config)
    with pytest.raises(InvalidInputError, match=message):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("line", ["{]", "7", "{}", '{"observation_id": 1, "proposed": {}}'])
def test_a_damaged_line_among_the_decisions_is_named(tmp_path: Path, line: str) -> None:
    record(tmp_path / "run", rows=1)
    with (tmp_path / "run" / "decisions.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InvalidInputError, match=r"every line of .* is a decision; got: line 2"):
        read_run(tmp_path / "run")


def test_observations_that_are_no_arrow_stream_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "run", rows=1)
    (tmp_path / "run" / "observations.arrows").write_bytes(b"no arrow " * 1000)
    with pytest.raises(InvalidInputError, match=r"observations\.arrows is an Arrow stream"):
        read_run(tmp_path / "run")


def test_observations_of_other_columns_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "run", rows=1)
    table = pa.table({"x": [1]})
    with pa.ipc.new_stream(str(tmp_path / "run" / "observations.arrows"), table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(InvalidInputError, match=r"has the columns of format 5; got: \['x'\]"):
        read_run(tmp_path / "run")


def test_files_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    record(tmp_path / "run", rows=2)
    with RunDirectory.create(tmp_path / "other", CONFIG) as other:
        other.record(step_of(observation(id=9)))
    (tmp_path / "other" / "decisions.jsonl").replace(tmp_path / "run" / "decisions.jsonl")
    with pytest.raises(InvalidInputError, match="observation 1 beside a decision on 9"):
        read_run(tmp_path / "run")


def test_a_decision_that_was_refused_is_recorded_as_proposed(tmp_path: Path) -> None:
    bad = replace(Decision(1, 0.5, "broken"), keep_fraction=math.nan)
    with RunDirectory.create(tmp_path / "run", CONFIG) as run:
        Cycle(ScriptedPlant([observation()]), ScriptedManager([bad]), recorder=run).run()
    assert math.isnan(read_run(tmp_path / "run").decisions[0].keep_fraction)


@pytest.mark.parametrize(("version", "unknown"), [(1, ["batch", "capacity_scale"]), (2, ["capacity_scale"])])
def test_a_run_of_an_older_format_is_still_read(tmp_path: Path, version: int, unknown: list[str]) -> None:
    seen = record(tmp_path / "run", rows=3)
    file = tmp_path / "run" / "observations.arrows"
    rows = pa.ipc.open_stream(file.read_bytes()).read_all().drop_columns(unknown)
    with file.open("wb") as output, pa.ipc.new_stream(output, rows.schema) as batches:
        batches.write_table(rows)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "format": version}))
    recorded = read_run(tmp_path / "run")
    assert not recorded.truncated
    for before, after in zip(seen, recorded.observations, strict=True):
        assert_equal(before, after)
        assert (after.batch, after.capacity_scale) == (None, 1.0)


def test_a_disk_that_is_full_ends_the_record_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path / "run", CONFIG, batch_rows=1)
    recorder = LiveRecorder(run)
    steps = [
        Step(observation(id=i), Decision(i, 1.0, "x"), Decision(i, 1.0, "x"), (), False) for i in range(4)
    ]
    recorder.record(steps[0])

    def full(step: Step) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "record", full)
    recorder.record(steps[1])
    recorder.record(steps[2])
    recorder.record_change("gold", 3, {"manager": "ctrl"})
    recorder.finish({"kind": "spark"})
    assert [m for m in caplog.messages if "not recorded any further" in m] == caplog.messages
    assert len(caplog.messages) == 1
    found = read_run(tmp_path / "run")
    assert found.truncated
    assert len(found.observations) == 1
    assert json.loads((tmp_path / "run" / "report.json").read_text()) == {"kind": "spark"}
