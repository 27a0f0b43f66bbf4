"""Old keys of a class that say what is shed: accepted for one release, mapped onto `shed`, said to be old."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config.flow import ClassConfig, FlowConfig, load_flow_config
from penstock.config.old_shedding import both_changes
from penstock.vocabulary.errors import InvalidInputError

BEFORE = Path(__file__).parents[1] / "before" / "data" / "run" / "config.json"


def gold(**cls: Any) -> ClassConfig:
    return load_flow_config({"log": "logs", "classes": {"gold": {"target": "8s", **cls}}}).classes["gold"]


WAYS: list[tuple[dict[str, Any], Any, str]] = [
    ({"sampling": "auto"}, "sample", "sampling is old: write shed: sample"),
    ({"sampling": "row"}, "row", "sampling is old: write shed: row"),
    ({"sampling": "segment"}, "segment", "sampling is old: write shed: segment"),
    ({"sampling": "key"}, "key", "sampling is old: write shed: key"),
    ({"shedder": None}, "sample", "shedder is old: write shed: sample"),
    ({"shedder": "random"}, "random", "shedder is old: write shed: random"),
    ({"shedder": "balance-sic"}, "balance-sic", "shedder is old: write shed: balance-sic"),
    (
        {"shedder": "oldest"},
        {"by": "oldest", "within": "class"},
        "shedder is old: write shed: {by: oldest, within: class}",
    ),
    (
        {"shedder": "cohort", "shedder_settings": {"buckets": 64}},
        {"by": "key", "within": "class"},
        "shedder and shedder_settings are old: write shed: {by: key, within: class}",
    ),
    (
        {"shedder": "semantic", "shedder_settings": {"utility": "amount * 2"}},
        {"by": "utility", "utility": "amount * 2"},
        "shedder and shedder_settings are old: write shed: {by: utility, utility: amount * 2}",
    ),
    (
        {
            "shedder": "semantic",
            "shedder_settings": {"by": "range", "key": "k", "shed_to": 9, "utility": None},
        },
        {"by": "range", "key": "k", "shed_to": 9},
        "shedder and shedder_settings are old: write shed: {by: range, key: k, shed_to: 9}",
    ),
    (
        {"shedder": "window", "shedder_settings": {"size": "2s", "column": "at"}},
        {"by": "window", "size": "2s", "column": "at"},
        "shedder and shedder_settings are old: write shed: {by: window, size: 2s, column: at}",
    ),
    ({"settings": {"victims": "oldest"}}, "oldest", "settings.victims is old: write shed: oldest"),
    ({"settings": {"victims": "uniform"}}, "sample", "settings.victims is old: write shed: sample"),
    (
        {"sampling": "row", "shedder": "random"},
        {"by": "random", "otherwise": "row"},
        "sampling and shedder are old: write shed: {by: random, otherwise: row}",
    ),
    (
        {"shedder": "balance-sic", "settings": {"victims": "oldest"}},
        {"by": "balance-sic", "otherwise": "oldest"},
        "shedder and settings.victims are old: write shed: {by: balance-sic, otherwise: oldest}",
    ),
]
"""What was written, what it is now, and what is said."""


@pytest.mark.parametrize(("old", "shed", "said"), WAYS, ids=[json.dumps(old) for old, _, _ in WAYS])
def test_an_old_way_is_the_new_one_and_one_line_says_so(
    old: dict[str, Any], shed: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = gold(**old)
    assert caplog.messages == [f"the flow: classes.gold.{said}"]
    assert config == gold(shed=shed)
    assert len(caplog.messages) == 1, "the new way is not old"


def test_the_line_names_the_file_and_comes_once_for_each_class(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(
        "log: logs\nclasses: {a: {target: 2s, sampling: key}, b: {target: 2s, shedder: random}}\n"
    )
    load_flow_config(path)
    assert caplog.messages == [
        f"{path}: classes.a.sampling is old: write shed: key",
        f"{path}: classes.b.shedder is old: write shed: random",
    ]


def test_a_class_by_itself_has_no_name_to_say(caplog: pytest.LogCaptureFixture) -> None:
    assert ClassConfig.model_validate({"target": 2, "sampling": "row"}).sampling == "row"
    assert caplog.messages == ["a class's sampling is old: write shed: row"]


def test_other_settings_of_the_manager_stay() -> None:
    config = gold(settings={"victims": "oldest", "late_fraction": 0.1})
    assert config.manager_settings == {"late_fraction": 0.1}
    assert config.settings == {"late_fraction": 0.1, "victims": "oldest"}


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (
            {"shed": "row", "sampling": "row"},
            r"classes\.gold\.shed must be the only key that says what is shed; got: shed beside sampling; "
            r"hint: leave out sampling, which is old",
        ),
        ({"shed": "random", "shedder": "random"}, "got: shed beside shedder; hint: leave out shedder"),
        ({"shed": "oldest", "settings": {"victims": "oldest"}}, "got: shed beside settings.victims"),
        ({"sampling": "rows"}, r"classes\.gold\.sampling must be one of .*; got: 'rows'; .* mean 'row'"),
        ({"sampling": "oldest"}, r"classes\.gold\.sampling must be one of auto, key, row, segment; got"),
        ({"shedder": "key"}, r"classes\.gold\.shedder must be one of balance-sic, cohort, .*; got: 'key'"),
        ({"shedder": ["random"]}, r"classes\.gold\.shedder must be one of .*; got: "),
        ({"shedder_settings": {"size": 1}}, r"shedder_settings is a key beside shedder alone"),
        ({"shedder": "window", "shedder_settings": 3}, r"shedder_settings must be a mapping of keys to val"),
        (
            {"shedder": "random", "shedder_settings": {"by": "x"}},
            r"shedder_settings\.by is no setting of ran",
        ),
        (
            {"shedder": "semantic", "shedder_settings": {"by": "key"}},
            r"by must be one of range, utility; got",
        ),
        ({"shedder": "window", "shedder_settings": {"size": "9s"}}, r"shed\.size must be at most the target"),
        ({"settings": {"victims": "odlest"}}, r"settings\.victims must be one of .*'odlest'.* mean 'oldest'"),
        ({"manager": "ctrl", "settings": {"victims": "oldest"}}, "a setting of ctrl must be one of"),
    ],
    ids=str,
)
def test_a_mistake_in_an_old_key_is_refused_at_its_place(cls: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        gold(**cls)
    assert "classes.gold" in str(caught.value)


# -- what an earlier Penstock wrote ---------------------------------------------------------------


def test_a_configuration_that_an_earlier_penstock_wrote_is_read_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = json.loads(BEFORE.read_text())["flow"]
    assert FlowConfig.from_json(json.dumps(written)).classes["gold"] == ClassConfig(target_s=60.0)
    written["classes"]["gold"] |= {
        "sampling": "row",
        "shedder": "window",
        "shedder_settings": {"size": "2s"},
        "settings": {"victims": "oldest"},
    }
    config = FlowConfig.from_json(json.dumps(written))
    assert str(config.classes["gold"].shed) == "{by: window, size: 2s, otherwise: oldest}"
    assert FlowConfig.from_json(config.to_json()) == config
    assert caplog.messages == []


# -- while the class runs -------------------------------------------------------------------------


def test_an_old_key_changes_its_part_of_what_a_running_class_sheds(caplog: pytest.LogCaptureFixture) -> None:
    config = ClassConfig(target_s=8.0).changed({"sampling": "segment"}, "class gold")
    assert str(config.shed) == "segment"
    config = config.changed({"shedder": "window", "shedder_settings": {"size": 1}}, "class gold")
    assert str(config.shed) == "{by: window, size: 1s, otherwise: segment}"
    config = config.changed({"shedder_settings": {"size": 2}}, "class gold")
    assert str(config.shed) == "{by: window, size: 2s, otherwise: segment}"
    config = config.changed({"shedder": "random"}, "class gold")
    assert str(config.shed) == "{by: random, otherwise: segment}", "settings were the other shedder's"
    config = config.changed({"settings": {"victims": "oldest"}}, "class gold")
    assert str(config.shed) == "{by: random, otherwise: oldest}"
    config = config.changed({"shedder": None, "manager": "ctrl"}, "class gold")
    assert str(config.shed) == "sample"
    assert caplog.messages[0] == "class gold: sampling is old: write shed: segment"
    assert len(caplog.messages) == 6


def test_a_change_by_old_and_new_keys_together_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"class gold: shed must be the only key .* got: shed beside sampling"
    ):
        ClassConfig(target_s=8.0).changed({"shed": "row", "sampling": "row"}, "class gold")
    with pytest.raises(InvalidInputError, match="class gold: sampling must be one of"):
        ClassConfig(target_s=8.0).changed({"sampling": "rows"}, "class gold")


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({"priority": 2}, {"target": 3}, {"priority": 2, "target": 3}),
        ({"sampling": "row"}, {"shedder": "random"}, {"sampling": "row", "shedder": "random"}),
        ({"sampling": "row", "priority": 2}, {"shed": "key"}, {"shed": "key", "priority": 2}),
        ({"shed": "random"}, {"sampling": "row"}, {"shed": {"by": "random", "otherwise": "row"}}),
        ({"shed": "random"}, {"shed": "key"}, {"shed": "key"}),
    ],
    ids=str,
)
def test_two_changes_in_a_row_are_one_that_says_once_what_is_shed(
    first: dict[str, Any], second: dict[str, Any], both: dict[str, Any]
) -> None:
    assert both_changes(first, second) == both
    config = ClassConfig(target_s=8.0)
    assert config.changed(first).changed(second) == config.changed(both)
