"""`shed` of a class: what it may be, what it means, and what every mistake in it is told."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from penstock.config.flow import ClassConfig, FlowConfig, load_flow_config
from penstock.config.shedding import RangeSettings, WindowSettings
from penstock.vocabulary.errors import InvalidInputError


def flow(shed: Any, **cls: Any) -> FlowConfig:
    return load_flow_config({"log": "logs", "classes": {"gold": {"target": "8s", "shed": shed, **cls}}})


def gold(shed: Any, **cls: Any) -> ClassConfig:
    return flow(shed, **cls).classes["gold"]


MEANINGS: list[tuple[Any, str, str | None, str]] = [
    ("sample", "auto", None, "uniform"),
    ("row", "row", None, "uniform"),
    ("segment", "segment", None, "uniform"),
    ("key", "key", None, "uniform"),
    ("oldest", "auto", None, "oldest"),
    ({"by": "key", "within": "class"}, "auto", "cohort", "uniform"),
    ({"by": "oldest", "within": "class"}, "auto", "oldest", "uniform"),
    ("random", "auto", "random", "uniform"),
    ("balance-sic", "auto", "balance-sic", "uniform"),
    ({"by": "utility", "utility": "priority * amount"}, "auto", "semantic", "uniform"),
    ({"by": "range", "key": "device", "shed_from": 3.0}, "auto", "semantic", "uniform"),
    ({"by": "window", "size": "2s", "column": "at"}, "auto", "window", "uniform"),
    ({"by": "random", "otherwise": "row"}, "row", "random", "uniform"),
    ({"by": "key", "within": "class", "otherwise": "key"}, "key", "cohort", "uniform"),
    ({"by": "window", "size": "2s", "otherwise": "oldest"}, "auto", "window", "oldest"),
]
"""`shed`; then what the control plane is told: sampling, the class's shedder, Deadline's victims."""


@pytest.mark.parametrize(("shed", "sampling", "shedder", "victims"), MEANINGS, ids=str)
def test_every_kind_is_what_the_control_plane_is_told(
    shed: Any, sampling: str, shedder: str | None, victims: str
) -> None:
    config = gold(shed)
    assert (config.sampling, config.shedder) == (sampling, shedder)
    assert config.build_manager().config.victims == victims
    built = config.build_shedder(seed=0)
    assert (None if built is None else built.name) == shedder


@pytest.mark.parametrize("shed", [shed for shed, *_ in MEANINGS], ids=str)
def test_every_kind_survives_json_and_is_written_as_it_was(shed: Any) -> None:
    config = flow(shed)
    assert FlowConfig.from_json(config.to_json()) == config
    assert yaml.safe_load(str(config.classes["gold"].shed)) == shed


def test_a_name_is_short_for_a_mapping_and_a_sample_is_the_default() -> None:
    assert gold("random") == gold({"by": "random"})
    assert ClassConfig(target_s=8.0).shed == gold("sample").shed
    assert gold({"by": "key", "within": "query"}) == gold("key")


@pytest.mark.parametrize(
    ("shed", "message"),
    [
        (3, r"shed must be a name, or a mapping with `by`; got: 3; hint: for example sample"),
        (None, r"shed must be a name, or a mapping with `by`; got: None"),
        ("rows", r"shed\.by must be one of .*, row, .*; got: 'rows'; hint: did you mean 'row'"),
        ({"size": "2s"}, r"shed\.by is required; got: .*; hint: one of sample, row, segment, key, oldest"),
        ({"by": "rage"}, r"shed\.by must be one of .*; got: 'rage'; hint: did you mean 'range'"),
        ("utility", r"shed\.utility is required; got: nothing; hint: what a row is worth: .* e\.g\. "),
        ({"by": "utility", "utility": "a +"}, r"shed\.utility: an expression .* in 'a \+'"),
        ({"by": "utility", "utilty": "a"}, r"a key of .*; got: 'utilty'; hint: did you mean 'utility'"),
        ({"by": "utility", "utility": "a", "key": "b"}, "a key of the flow, classes.gold.shed must .*'key'"),
        ({"by": "range", "shed_to": 3}, r"shed\.key is required; got: nothing"),
        ({"by": "range", "key": "b"}, "shed: a range leaves some keys out; got: -inf to inf"),
        ({"by": "range", "key": "b", "shed_from": 3, "shed_to": 1}, "begins before it ends"),
        ({"by": "range", "key": "b", "shed_from": "x"}, r"shed\.shed_from must be a number; got: 'x'"),
        ("window", r"shed\.size is required; got: nothing; hint: how long a window is"),
        ({"by": "window", "size": "soon"}, r"shed\.size must be a number with a unit; got: 'soon'"),
        ({"by": "window", "size": 1e-9}, r"shed\.size must be a microsecond or more"),
        ({"by": "window", "size": "9s"}, r"shed\.size must be at most the target: .*; got: 9s for .* 8s"),
        ({"by": "window", "size": 1, "colum": "at"}, "got: 'colum'; hint: did you mean 'column'"),
        ({"by": "random", "size": 1}, "a key of the flow, classes.gold.shed must be one of by, otherwise;"),
        ({"by": "balance-sic", "projection": "x"}, r"shed\.projection must be true or false; got: 'x'"),
        ({"by": "key", "otherwise": "row"}, r"shed\.otherwise is a setting within .*; got: row; hint: add"),
        ({"by": "oldest", "within": "clas"}, r"shed\.within must be one of class, query; got: 'clas'"),
        ({"by": "random", "otherwise": "random"}, r"shed\.otherwise must be one of key, oldest, row, .*"),
    ],
    ids=str,
)
def test_a_mistake_is_named_with_its_place_and_a_hint(shed: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        gold(shed)
    assert "classes.gold.shed" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shed", ["oldest", {"by": "random", "otherwise": "oldest"}], ids=str)
def test_the_oldest_rows_of_each_query_are_deadlines_to_shed(shed: Any) -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"classes\.gold\.shed must not shed the oldest rows of each query under another manager than "
        r"deadline; got: .* under ctrl; hint: write shed: \{by: oldest, within: class\}, or leave",
    ):
        gold(shed, manager="ctrl")
    assert gold({"by": "oldest", "within": "class"}, manager="ctrl").shedder == "oldest"


def test_settings_reach_the_shedder() -> None:
    settings = gold({"by": "range", "key": "device", "shed_from": "3"}).shed
    assert isinstance(settings, RangeSettings)
    assert (settings.shed_from, settings.inside) == (3.0, 3.0)
    assert settings.worth == 'CASE WHEN "device" >= 3 THEN 0 WHEN "device" IS NOT NULL THEN 1 END'
    shedder = gold({"by": "balance-sic", "projection": False}).build_shedder(seed=0)
    assert shedder is not None
    assert shedder.config.projection is False  # type: ignore[attr-defined]
    cohort = gold({"by": "key", "within": "class"}).build_shedder(seed=7)
    assert cohort is not None
    assert cohort.seed == 7  # type: ignore[attr-defined]


def test_a_window_is_over_the_column_named_else_the_streams_own_else_arrival() -> None:
    settings = gold({"by": "window", "size": "500ms"}).shed
    assert isinstance(settings, WindowSettings)
    assert settings.size_us == 500_000
    assert (settings.column_of("at"), settings.column_of(None)) == ("at", "_arrival")
    named = gold({"by": "window", "size": 1, "column": "when"}).shed
    assert named.column_of("at") == "when"


@pytest.mark.parametrize("shed", ["key", {"by": "key", "within": "class"}], ids=str)
def test_streams_of_a_class_that_sheds_by_key_must_declare_one(shed: Any) -> None:
    assert gold(shed).sheds_by_key
    assert not gold("sample").sheds_by_key


# -- while the class runs -------------------------------------------------------------------------


def test_what_a_running_class_sheds_is_changed_as_a_whole() -> None:
    config = gold({"by": "window", "size": "1s"})
    assert config.changed({"shed": "random"}) == gold("random")
    assert config.changed({"priority": 2}).shed == config.shed
    with pytest.raises(InvalidInputError, match=r"class gold: shed\.size must be at most the target"):
        config.changed({"target": "500ms"}, "class gold")
    with pytest.raises(InvalidInputError, match=r"class gold: shed\.by must be one of .*got: 'rows'"):
        config.changed({"shed": "rows"}, "class gold")


def test_another_manager_of_a_running_class_sheds_a_sample_where_deadline_shed_the_oldest_rows() -> None:
    assert gold("oldest").changed({"manager": "ctrl"}) == gold("sample", manager="ctrl")
    either = gold({"by": "random", "otherwise": "oldest"}).changed({"manager": "ctrl"})
    assert either == gold("random", manager="ctrl")
    assert gold("key").changed({"manager": "ctrl"}) == gold("key", manager="ctrl")
    assert gold("oldest").changed({"manager": "ctrl", "shed": "row"}) == gold("row", manager="ctrl")


def test_a_change_to_the_oldest_rows_of_each_query_changes_the_settings_of_the_manager() -> None:
    config = gold("sample", settings={"late_fraction": 0.1})
    assert config.settings == {"late_fraction": 0.1}
    assert config.changed({"shed": "oldest"}).settings == {"late_fraction": 0.1, "victims": "oldest"}
