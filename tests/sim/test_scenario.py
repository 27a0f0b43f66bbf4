from pathlib import Path

import numpy as np
import pytest

from penstock.policies.load import LOAD_MANAGERS
from penstock.policies.load.design import Controller
from penstock.sim.scenario import NETWORKS, Scenario, capacity_per_s, load_scenario, parse_scenario
from penstock.sim.workloads.network import Kind
from penstock.sim.workloads.networks import PHAM_HEADROOM, qn_complex, qn_flat
from penstock.sim.workloads.specs import WORKLOADS, Constant, SelfSimilar, load_at
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

INLINE: list[dict[str, object]] = [
    {"name": "in", "kind": "source", "cost": "1ms"},
    {"name": "keep", "kind": "select", "cost": "2ms", "selectivity": 0.5, "inputs": ["in"]},
    {"name": "out", "kind": "output", "cost": "1ms", "inputs": ["keep"]},
]


def written(tmp_path: Path, text: str, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


# -- what is accepted -----------------------------------------------------------------------------


def test_the_default_scenario_is_real_traffic_on_qn_flat_under_deadline() -> None:
    scenario = Scenario()
    assert (scenario.built_network.name, scenario.manager, scenario.delay_target_s) == (
        "QN-flat",
        "deadline",
        2.0,
    )
    assert scenario.headroom_steps == ((0.0, PHAM_HEADROOM),)
    assert scenario.arrivals.name.startswith("S_r")


def test_a_file_is_read_with_units_and_named_after_itself(tmp_path: Path) -> None:
    scenario = load_scenario(
        written(tmp_path, "delay_target: 500ms\nperiod: 100ms\nduration: 1min\nworkload: {kind: s_c}\n")
    )
    assert (scenario.name, scenario.delay_target_s, scenario.period_s, scenario.duration_s) == (
        "mine",
        0.5,
        0.1,
        60.0,
    )
    assert scenario.arrivals.duration_s == 60.0


def test_an_empty_file_is_the_default_scenario(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, "# nothing yet\n")).manager == "deadline"


@pytest.mark.parametrize("kind", [kind for kind in WORKLOADS if kind != "trace"])
def test_every_kind_of_workload_has_defaults_that_run(kind: str) -> None:
    arrivals = parse_scenario({"workload": kind, "duration": "50s"}).arrivals
    assert arrivals.count > 0
    assert arrivals.duration_s == 50.0
    assert arrivals.times_s[-1] <= 50.0


@pytest.mark.parametrize("name", NETWORKS)
def test_every_named_network_builds_with_the_same_input_at_every_source(name: str) -> None:
    plant, _ = parse_scenario({"network": name, "workload": "constant", "duration": "1s"}).build()
    while plant.observe() is not None:
        pass
    assert plant.offered_rows == pytest.approx(350 * len(plant.network.sources), rel=0.05)


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_every_manager_builds_by_its_name(name: str) -> None:
    plant, manager = parse_scenario({"manager": name, "duration": "1s"}).build()
    assert manager.name == name
    assert plant.grants == manager.traits.gives_grants


def test_a_network_can_be_written_into_the_scenario() -> None:
    network = parse_scenario({"name": "own", "network": INLINE}).built_network
    assert [op.name for op in network.operators] == ["in", "keep", "out"]
    assert network.cost_per_row_s() == pytest.approx(0.001 + 0.002 + 0.5 * 0.001)


def test_manager_settings_reach_the_manager_with_their_types_checked() -> None:
    gains = {"a": -0.8, "b0": 0.4, "b1": -0.31}
    scenario = parse_scenario(
        {"manager": "ctrl", "manager_settings": {"headroom": "0.9", "controller": gains}}
    )
    assert scenario.manager_config().headroom == 0.9
    assert scenario.manager_config().controller == Controller(**gains)


def test_a_background_job_and_a_cost_trace_reach_the_machine() -> None:
    steps = [{"from": "0s", "fraction": 0.985}, {"from": "1min", "fraction": 0.5}]
    scenario = parse_scenario({"headroom": steps, "cost_trace": True, "duration": "100s"})
    assert scenario.headroom_steps == ((0.0, 0.985), (60.0, 0.5))
    plant, _ = scenario.build()
    assert plant.run_s == 100.0


def test_the_configuration_is_a_scenario_again() -> None:
    scenario = parse_scenario({"network": INLINE, "workload": {"kind": "pareto", "hold": "2s"}})
    assert parse_scenario(scenario.to_config()) == scenario


# -- scaling --------------------------------------------------------------------------------------


def test_capacity_is_shared_by_the_sources() -> None:
    flat, grouped = qn_flat(), qn_complex(groups=4)
    assert capacity_per_s(flat, 0.5) == pytest.approx(0.5 / flat.cost_per_row_s())
    assert capacity_per_s(grouped, 1.0) == pytest.approx(1.0 / grouped.cost_per_row_s() / 4)


@pytest.mark.parametrize("name", NETWORKS)
def test_capacity_is_where_the_load_reaches_the_headroom_joins_included(name: str) -> None:
    network = NETWORKS[name]()
    assert load_at(network, capacity_per_s(network, 0.9)) == pytest.approx(0.9)
    joins = any(op.kind is Kind.JOIN for op in network.operators)
    linear = load_at(network, 2 * capacity_per_s(network, 0.9)) == pytest.approx(1.8)
    assert linear is not joins


def test_overload_sets_the_mean_load_over_what_is_really_run() -> None:
    scenario = Scenario(workload=SelfSimilar(overload=2.0), duration_s=50, headroom=0.5)
    capacity = capacity_per_s(scenario.built_network, 0.5)
    assert scenario.arrivals.mean_rate_per_s == pytest.approx(2.0 * capacity, rel=1e-3)


def test_time_scale_changes_speed_and_duration_holds_after_it() -> None:
    slow = Scenario(workload=Constant(rate_per_s=100, time_scale=2.0), duration_s=40).arrivals
    assert (slow.count, slow.duration_s) == (2000, 40.0)


def test_a_run_longer_than_its_workload_goes_on_in_silence(tmp_path: Path) -> None:
    trace = written(tmp_path, "0.5\n1.5\n", "t.txt")
    scenario = load_scenario(overrides={"workload": {"kind": "trace", "path": str(trace)}, "duration": 10})
    assert (scenario.arrivals.count, scenario.arrivals.duration_s) == (2, 10.0)


@pytest.mark.parametrize(
    ("text", "times_s"),
    [
        pytest.param("100.25\n101.5\n", [0.25, 1.5], id="times_of_day"),
        pytest.param("1700000000.5\n1700000001.5\n", [0.5, 1.5], id="epoch_stamps"),
        pytest.param("second,count\n7,0\n8,2\n", [1.0, 1.5], id="counts_with_a_header_and_a_quiet_start"),
    ],
)
def test_a_trace_begins_in_its_own_first_second(tmp_path: Path, text: str, times_s: list[float]) -> None:
    trace = written(tmp_path, text, "t.csv")
    arrivals = load_scenario(overrides={"workload": {"kind": "trace", "path": str(trace)}}).arrivals
    np.testing.assert_allclose(arrivals.times_s, times_s)


def test_a_trace_is_found_beside_its_scenario_file(tmp_path: Path) -> None:
    written(tmp_path, "0.1\n0.2\n", "t.txt")
    scenario = load_scenario(written(tmp_path, "workload: {kind: trace, path: t.txt}\n"))
    assert scenario.arrivals.count == 2


# -- overrides ------------------------------------------------------------------------------------


def test_overrides_replace_keys_and_keep_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path, "manager: ctrl\nmanager_settings: {headroom: 0.9}\nseed: 3\n")
    same, other = load_scenario(path, {"seed": 4}), load_scenario(path, {"manager": "aurora"})
    assert (same.seed, same.manager_config().headroom) == (4, 0.9)
    assert (other.seed, other.manager_settings) == (3, {})


def test_a_scale_on_the_command_line_displaces_the_one_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "workload: {kind: constant, rate_per_s: 50, overload: 1.5}\n")
    workload = load_scenario(path, {"workload": {"rate_scale": 2.0}}).workload
    assert (workload.kind, workload.rate_scale, workload.overload) == ("constant", 2.0, None)


def test_another_workload_replaces_the_one_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "workload: {kind: constant, rate_per_s: 50, overload: 1.5}\n")
    assert load_scenario(path, {"workload": {"kind": "s_c"}}).workload.overload is None


def test_a_scenario_under_another_manager_has_the_very_same_input() -> None:
    scenario = Scenario(workload=SelfSimilar(), duration_s=20, manager_settings={"margin_fraction": 0.1})
    other = scenario.with_manager("ctrl")
    assert other.arrivals is scenario.arrivals
    assert (other.manager, other.manager_settings) == ("ctrl", {})
    with pytest.raises(UnknownNameError, match="did you mean 'ctrl'"):
        scenario.with_manager("ctrll")


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"mnager": "ctrl"},
            r"a key of x\.yaml must be one of .*; got: 'mnager'; hint: did you mean 'manager'",
        ),
        ({"workload": {"kind": "pareto", "bais": 1}}, r"x\.yaml, workload must .*'bais'.* mean 'bias'"),
        ({"network": [{**INLINE[0], "csot": 1}]}, r"x\.yaml, network\.0 must .*'csot'.* mean 'cost'"),
        ({"network": [{"name": "a", "knd": "source"}]}, "'knd'.* mean 'kind'"),
        ({"headroom": [{"form": 0, "fraction": 1}]}, r"headroom\.0 must .*'form'.* mean 'from'"),
        ({"workload": {"kind": "step", "levels": [{"rate": 1}]}}, r"levels\.0 must .* mean 'rate_per_s'"),
        ({"workload": "paretto"}, "workload.kind must be one of .*; got: 'paretto'; .* mean 'pareto'"),
        ({"workload": {}}, "workload.kind is required"),
        ({"workload": {"kind": "trace"}}, "workload.path is required; got: nothing; hint: a file with"),
        ({"workload": [1]}, r"workload must be a mapping of keys to values; got: \[1\]"),
        ({"manager": "deadlin"}, "manager must be one of .*; got: 'deadlin'; hint: did you mean 'deadline'"),
        ({"manager_settings": {"margn_fraction": 0.1}}, "a setting of deadline .* mean 'margin_fraction'"),
        (
            {"manager": "ctrl", "manager_settings": {"headroom": "high"}},
            "manager_settings of ctrl: headroom must be a number; got: 'high'",
        ),
        (
            {"manager": "ctrl", "manager_settings": {"headroom": -1}},
            "headroom must be a positive number; got: -1",
        ),
        ({"manager_settings": 3}, "manager_settings must be a mapping"),
        ({"network": "flet"}, "network must be one of .*; got: 'flet'; hint: did you mean 'flat'"),
        ({"network": 3}, "network must be a list; got: 3"),
        ({"network": []}, "a network has a source"),
        ({"network": [{"name": "a", "kind": "sauce", "cost": 1}]}, "kind must be .*'sauce'.* mean 'source'"),
        ({"network": [{**INLINE[0], "selectivity": float("nan")}]}, "selectivity must lie between 0 and 100"),
        ({"delay_target": "1ms"}, "longer than one row takes through QN-flat, 4.74ms; got: 1ms; hint"),
        ({"delay_target": "2 parsecs"}, "delay_target must have a unit of"),
        ({"delay_target": -2}, "delay_target must be a positive number of seconds; got: -2"),
        ({"period": 0}, "period must be a positive number of seconds; got: 0"),
        ({"headroom": float("nan")}, "headroom must be a positive number; got: nan"),
        ({"headroom": "half"}, r"headroom must be a number; got: 'half'; hint: 0\.985, or steps"),
        ({"headroom": [{"from": 0, "fraction": 1}] * 2}, "headroom steps must be in order of time"),
        ({"headroom": [{"from": 5, "fraction": 1}]}, "headroom steps start at 0 s"),
        ({"headroom": []}, "headroom steps start at 0 s"),
        ({"seed": -1}, "seed must be a whole number, 0 or more; got: -1"),
        ({"seed": "lucky"}, "seed must be a whole number; got: 'lucky'; hint: 0, 1, 2"),
        ({"dry_run": "perhaps"}, "dry_run must be true or false; got: 'perhaps'"),
        (
            {"workload": {"kind": "constant", "rate_per_s": "nan"}},
            "rate_per_s must be a positive number; got: nan",
        ),
        ({"workload": {"kind": "constant", "overload": -1}}, "overload must be a positive number; got: -1"),
        ({"workload": {"kind": "s_c", "time_scale": 0}}, "time_scale must be a positive number; got: 0"),
        (
            {"workload": {"kind": "s_c", "overload": 2, "rate_scale": 2}},
            "scaled by rate_scale or by overload, not by both",
        ),
        ({"workload": {"kind": "step"}, "duration": "5s"}, "each level must start before"),
        (
            {"workload": {"kind": "step", "levels": [{"from": 0, "rate_per_s": 0}]}, "duration": "5s"},
            "a workload must have a row to run on",
        ),
        ({"workload": "constant", "period": "1us"}, "a run must have at most"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_a_hint(raw: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse_scenario(raw, "x.yaml").build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", "a scenario file must be a mapping of keys to values; got: "),
        (b"just words", "a scenario file must be a mapping"),
        (b"a: [1, 2", "a scenario file must be YAML; got: .*line 1; hint: see examples/scenarios"),
        (b"\x00\x01\x02\xff\xfe", "a scenario file must be YAML"),
        (bytes(range(256)), "a scenario file must be YAML"),
        (b"[" * 5000, "a scenario file must be YAML"),
        (b"1: 2\n", "got: '1'"),
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nname: [*c, *c]\n", "got: 'a'"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_on_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="the scenario file must exist"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(InvalidInputError, match="the scenario file must be readable"):
        load_scenario(tmp_path)
