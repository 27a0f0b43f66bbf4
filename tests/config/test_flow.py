"""What a flow is configured by: what is accepted, where paths lead, and what every mistake is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config.flow import ClassConfig, FlowConfig, load_flow_config
from penstock.policies.load import LOAD_MANAGERS
from penstock.policies.load.deadline import DeadlineConfig
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.model import ManagerTraits, QueryClass

GOOD: dict[str, Any] = {
    "log": "logs",
    "classes": {"gold": {"target": "2s", "priority": 6}, "bulk": {"target": 30}},
}


def written(tmp_path: Path, text: str, name: str = "penstock.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


# -- what is accepted -----------------------------------------------------------------------------


def test_a_class_needs_only_a_target() -> None:
    config = load_flow_config({"log": "logs", "classes": {"gold": {"target": "500ms"}}}).classes["gold"]
    assert (config.target_s, config.priority, config.manager, str(config.shed)) == (
        0.5,
        1.0,
        "deadline",
        "sample",
    )
    assert (config.shed_lane, config.poison_after, config.min_keep_fraction, config.dry_run) == (
        False,
        None,
        0.0,
        False,
    )


def test_a_class_becomes_the_class_of_the_model_and_weights_follow_priority() -> None:
    flow = load_flow_config(GOOD)
    assert flow.query_classes()["gold"] == QueryClass("gold", 2.0, 6.0, "deadline")
    assert {name: cls.priority for name, cls in flow.classes.items()} == {"gold": 6.0, "bulk": 1.0}


def test_a_flow_has_defaults_for_all_but_log_and_classes() -> None:
    flow = load_flow_config(GOOD)
    assert (flow.run, flow.slots, flow.dry_run, flow.address, flow.fail_open_after_s, flow.seed) == (
        None,
        "auto",
        False,
        None,
        5.0,
        0,
    )


@pytest.mark.parametrize("manager", LOAD_MANAGERS)
def test_every_load_manager_is_built_by_its_name(manager: str) -> None:
    assert ClassConfig(target_s=2.0, manager=manager).build_manager().name == manager


def test_settings_reach_the_manager_with_their_types_checked() -> None:
    config = ClassConfig(target_s=2.0, manager="aloma", settings={"headroom": "0.7"})
    assert config.build_manager().config.headroom == 0.7


@pytest.mark.parametrize(
    ("manager", "settings", "given"),
    [
        ("ctrl", {"headroom": 0.5}, True),
        ("ctrl", {"max_drop_fraction": 0.5}, False),
        ("seamless", {}, False),
        ("deadline", {"margin_fraction": 0.1}, False),
    ],
)
def test_a_headroom_is_given_if_the_user_wrote_the_setting_that_the_manager_names(
    manager: str, settings: dict[str, float], given: bool
) -> None:
    assert ClassConfig(target_s=2.0, manager=manager, settings=settings).headroom_given is given


def test_a_manager_may_call_its_headroom_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ManagerTraits(headroom_setting="margin_fraction")
    monkeypatch.setattr(DeadlineConfig, "traits", lambda _: other)
    assert ClassConfig(target_s=2.0, settings={"margin_fraction": 0.1}).headroom_given
    assert not ClassConfig(target_s=2.0).headroom_given


def test_two_builds_share_no_state() -> None:
    config = ClassConfig(target_s=2.0)
    assert config.build_manager().state is not config.build_manager().state


def test_a_running_class_changes_key_by_key() -> None:
    config = ClassConfig(target_s=2.0, priority=3.0, settings={"late_fraction": 0.1}, shed="oldest")
    changed = config.changed({"target": "5s"})
    assert changed == ClassConfig(
        target_s=5.0, priority=3.0, settings={"late_fraction": 0.1}, shed={"by": "oldest"}
    )
    assert changed.changed({"target_s": 2.0}) == config
    with pytest.raises(InvalidInputError, match=r"class gold: priority must be more than 0; got: -1"):
        config.changed({"priority": -1}, "class gold")


def test_another_manager_of_a_running_class_starts_from_its_own_defaults() -> None:
    config = ClassConfig(target_s=2.0, settings={"late_fraction": 0.1}).changed({"manager": "ctrl"})
    assert (config.manager, config.settings) == ("ctrl", {})


def test_a_class_is_dry_by_its_own_switch_or_by_the_flows() -> None:
    flow = load_flow_config({**GOOD, "classes": {"a": {"target": 2, "dry_run": True}, "b": {"target": 2}}})
    assert (flow.is_dry("a"), flow.is_dry("b")) == (True, False)
    assert flow.model_copy(update={"dry_run": True}).is_dry("b")


def test_a_configuration_that_is_ready_is_taken_as_it_is() -> None:
    flow = load_flow_config(GOOD)
    assert load_flow_config(flow) is flow


def test_the_configuration_survives_json() -> None:
    flow = load_flow_config(
        {
            **GOOD,
            "run": "runs/today",
            "classes": {"gold": {"target": "2s", "manager": "ctrl", "settings": {"headroom": 0.9}}},
            "address": "unix:///run/penstock.sock",
            "fail_open_after": "1min",
            "seed": 7,
        }
    )
    assert FlowConfig.from_json(flow.to_json()) == flow


# -- streams that lie elsewhere -------------------------------------------------------------------


def test_streams_are_addresses_or_directories_that_are_relative_to_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "log: logs\nclasses: {gold: {target: 2s}}\n"
        "streams:\n  orders: grpc://host:8815/orders\n  clicks: ../there/clicks\n"
        f"  logins: file://{tmp_path}/logins\n",
    )
    flow = load_flow_config(path)
    assert flow.streams == {
        "orders": "grpc://host:8815/orders",
        "clicks": str(tmp_path.parent / "there" / "clicks"),
        "logins": f"{tmp_path}/logins",
    }
    assert FlowConfig.from_json(flow.to_json()) == flow


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        (
            {"orders": "gprc://host:1/orders"},
            "streams.orders must be one of grpc://; got: 'gprc://'; hint",
        ),
        ({"orders": "grpc://host:1"}, "streams.orders must end in the stream's name; got: 'grpc://host:1'"),
        (
            {"orders": "grpc://host:1/"},
            "must end in the stream's name; got: 'grpc://host:1/'; hint",
        ),
        (
            {"orders": "grpc://me:pw@host:1/orders"},
            "must not have a user or a password; got: 'grpc://...@host:1",
        ),
        ({"orders": " "}, "streams.orders must not be empty"),
        ({"orders": {"schema": {}}}, "streams.orders must be a text"),
        ({"or/ders": "grpc://host:1/orders"}, "must have a name of letters, digits, _ and -; got: 'or/ders'"),
    ],
)
def test_a_mistake_in_streams_is_one_line(streams: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        load_flow_config({**GOOD, "streams": streams})
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "pw" not in str(error.value)


def test_a_configuration_of_another_process_may_name_kinds_that_are_not_installed_here() -> None:
    flow = FlowConfig(log=Path("/logs"), classes={"a": ClassConfig(target_s=2.0)}, streams={"s": "mq://h/s"})
    assert FlowConfig.from_json(flow.to_json()).streams == {"s": "mq://h/s"}


# -- paths ----------------------------------------------------------------------------------------


def test_paths_of_a_file_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    written(tmp_path / "here", "log: ../logs\nrun: runs/x\nclasses: {gold: {target: 2s}}\n")
    monkeypatch.chdir(tmp_path)
    flow = load_flow_config("here/penstock.yaml")
    assert (flow.log, flow.run) == (tmp_path / "logs", tmp_path / "here" / "runs" / "x")


def test_paths_of_a_mapping_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_flow_config(GOOD).log == tmp_path / "logs"
    assert load_flow_config({**GOOD, "log": tmp_path / "other"}).log == tmp_path / "other"


def test_the_home_directory_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_flow_config({**GOOD, "log": "~/logs"}).log == tmp_path / "logs"


# -- what is refused ------------------------------------------------------------------------------


def gold(**changed: object) -> dict[str, object]:
    return {**GOOD, "classes": {"gold": {"target": "2s", **changed}}}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"classes": GOOD["classes"]}, "the flow: log is required; got: nothing; hint: the directory of"),
        ({"log": "logs"}, "the flow: classes is required"),
        ({**GOOD, "classes": {}}, r"classes must not be empty; got: \{\}; hint: \{gold: "),
        ({**GOOD, "classes": ["gold"]}, "classes must be a mapping of keys to values"),
        (
            {**GOOD, "classes": {"gold": None}},
            r"classes.gold must be a mapping of keys to values; got: None; hint: \{gold: ",
        ),
        ({**GOOD, "classes": {"go ld": {"target": 2}}}, "classes.go ld must have a name of letters"),
        ({**GOOD, "classes": {1: {"target": 2}}}, "classes.1 must be a text; got: 1"),
        ({**GOOD, "clases": {}}, "a key of the flow must be one of .*; got: 'clases'; .* mean 'classes'"),
        (gold(prority=3), "a key of the flow, classes.gold must .*; got: 'prority'; .* mean 'priority'"),
        ({**GOOD, "classes": {"gold": {"taget": "2s"}}}, "'taget'; hint: did you mean 'target'"),
        (
            {**GOOD, "classes": {"gold": {}}},
            "classes.gold.target is required; .* hint: the delay target, e.g. 2s",
        ),
        (
            gold(target="2 parsecs"),
            "the flow: classes.gold.target must have a unit of .*; got: '2 parsecs'; hint",
        ),
        (gold(target="soon"), "classes.gold.target must be a number with a unit; got: 'soon'; hint: write 2"),
        (gold(target=0), "classes.gold.target must be a positive number of seconds; got: 0"),
        (gold(target=True), "classes.gold.target must be a number with a unit; got: True"),
        (gold(priority=0), "classes.gold.priority must be more than 0; got: 0; hint: weight of its share"),
        (gold(priority=float("nan")), "classes.gold.priority must be a finite number; got: nan"),
        (gold(priority="high"), "classes.gold.priority must be a number; got: 'high'"),
        (
            gold(manager="deadlin"),
            "classes.gold.manager must be one of .*; got: 'deadlin'; .* mean 'deadline'",
        ),
        (
            gold(settings={"late_fractoin": 0.1}),
            "classes.gold.settings: a setting of deadline must be one of .*'late_fractoin'.* mean 'late_frac",
        ),
        (
            gold(settings={"late_fraction": "some"}),
            "classes.gold.settings: deadline: late_fraction must be a number; got: 'some'",
        ),
        (
            gold(manager="ctrl", settings={"headroom": "high"}),
            "classes.gold.settings: ctrl: headroom must be a number; got: 'high'",
        ),
        (
            gold(manager="ctrl", settings={"headroom": -1}),
            "settings: headroom must be a positive number; got: -1",
        ),
        (gold(settings=3), "classes.gold.settings must be a mapping"),
        (gold(shed_lane="perhaps"), "classes.gold.shed_lane must be true or false; got: 'perhaps'"),
        (
            gold(poison_after=0),
            "classes.gold.poison_after must be at least 1; got: 0; hint: set a grant aside",
        ),
        (gold(min_keep_fraction=1.5), "classes.gold.min_keep_fraction must be at most 1; got: 1.5"),
        ({**GOOD, "slots": 0}, "slots must be auto, or at least 1; got: 0"),
        ({**GOOD, "slots": 1.5}, "slots must be auto or a whole number; got: 1.5"),
        ({**GOOD, "seed": -1}, "seed must be at least 0; got: -1"),
        (
            {**GOOD, "fail_open_after": "0s"},
            "fail_open_after must be a positive number of seconds; got: '0s'",
        ),
        ({**GOOD, "log": ""}, "log must not be empty"),
        ({**GOOD, "log": 3}, "log must be a path; got: 3; hint: the directory of"),
        (
            {**GOOD, "log": "s3://bucket/logs"},
            "log must be a directory of this machine; got: 's3://bucket/logs'",
        ),
        (
            {**GOOD, "address": "tcp://host:1"},
            "address must be unix:// and an absolute path; got: 'tcp://host:1'",
        ),
        ({**GOOD, "address": "unix://sock"}, "address must be unix:// and an absolute path"),
        ({**GOOD, "address": "unix:///" + "x" * 200}, "address must have a path of at most 107 bytes"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_a_hint(raw: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_flow_config(raw)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "log: logs\nclasses: {gold: {target: never}}\n")
    with pytest.raises(InvalidInputError, match=rf"{path}: classes\.gold\.target must be"):
        load_flow_config(path)


def test_an_unknown_name_has_its_own_error() -> None:
    with pytest.raises(UnknownNameError):
        load_flow_config(gold(manager="magic"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n", "a flow file must be a mapping of keys to values; got: "),
        (b"a: [1, 2", "a flow file must be YAML; got: .*line 1; hint: see examples/pipelines"),
        (b"", "log is required"),
        (
            b"log: logs\nclasses:\n  gold: {target: 2s}\n  gold: {target: 3s}\n",
            "a flow file must be YAML; got: the key 'gold' stands twice in .*, line 4",
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_on_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_flow_config(path)
    assert "\n" not in str(caught.value)


def test_anchors_and_merges_are_no_key_that_stands_twice(tmp_path: Path) -> None:
    text = "log: logs\nclasses:\n  a: &a {target: 2s, priority: 2}\n  b: {<<: *a, target: 4s}\n"
    flow = load_flow_config(written(tmp_path, text))
    assert (flow.classes["b"].target_s, flow.classes["b"].priority) == (4.0, 2.0)


def test_what_is_no_configuration_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="the flow file must exist"):
        load_flow_config(tmp_path / "none.yaml")
    with pytest.raises(InvalidInputError, match="a flow is a file, a mapping or a configuration; got: 3"):
        load_flow_config(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["{", "[]", '{"log": "x"}'])
def test_json_that_is_no_configuration_is_refused_on_one_line(text: str) -> None:
    with pytest.raises(InvalidInputError, match="the configuration") as caught:
        FlowConfig.from_json(text)
    assert "\n" not in str(caught.value)
