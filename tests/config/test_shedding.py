"""`shedder_settings` of a class: checked when the configuration is read, with rule, value and hint."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.flow import ClassConfig, FlowConfig, load_flow_config
from penstock.config.shedding import SemanticSettings, WindowSettings
from penstock.vocabulary.errors import InvalidInputError


def gold(shedder: str | None, **settings: Any) -> FlowConfig:
    cls = {"target": "8s", "shedder": shedder, "shedder_settings": settings}
    return load_flow_config({"log": "logs", "classes": {"gold": cls}})


@pytest.mark.parametrize(
    ("shedder", "settings", "message"),
    [
        ("semantic", {}, "semantic: utility is required by utility; got: nothing; hint: for example"),
        ("semantic", {"utility": "a +"}, "semantic: utility: an expression .* in 'a \\+'"),
        ("semantic", {"utilty": "a"}, "a key of semantic .*; got: 'utilty'; hint: did you mean 'utility'"),
        ("semantic", {"utility": "a", "key": "b"}, "key is not a key by utility; got: 'b'"),
        ("semantic", {"utility": "a", "shed_to": 3}, "a range is shed by range"),
        ("semantic", {"by": "range", "shed_to": 3}, "key is required by range; got: nothing"),
        ("semantic", {"by": "range", "key": "b"}, "a range leaves some keys out; got: -inf to inf"),
        ("semantic", {"by": "range", "key": "b", "shed_from": 3, "shed_to": 1}, "begins before it ends"),
        ("semantic", {"by": "range", "key": "b", "shed_from": "x"}, "shed_from must be a number; got: 'x'"),
        ("semantic", {"by": "rage"}, "by must be one of range, utility; got: 'rage'; hint: did you mean"),
        ("window", {}, "window: size is required"),
        ("window", {"size": "soon"}, "size must be a number with a unit; got: 'soon'"),
        ("window", {"size": 1e-9}, "size must be a microsecond or more"),
        ("window", {"size": "9s"}, "size must be at most the target: .*; got: 9s for a target of 8s"),
        ("window", {"size": 1, "colum": "at"}, "got: 'colum'; hint: did you mean 'column'"),
        ("random", {"size": 1}, "random has no settings; got: size"),
        ("balance-sic", {"projektion": True}, "got: 'projektion'; hint: did you mean 'projection'"),
        ("balance-sic", {"projection": "x"}, "projection must be true or false; got: 'x'"),
        ("cohort", {"buckets": 1}, "a cohort needs two buckets"),
        (None, {"size": 1}, "is a key beside shedder alone"),
    ],
)
def test_wrong_settings_are_refused_at_their_key(shedder: str | None, settings: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"classes\.gold\.shedder_settings.*{message}"):
        gold(shedder, **settings)


def test_settings_survive_json_and_reach_the_shedder() -> None:
    flow = gold("semantic", by="range", key="device", shed_from="3")
    assert FlowConfig.from_json(flow.to_json()) == flow
    settings = flow.classes["gold"].shedder_config()
    assert isinstance(settings, SemanticSettings)
    assert (settings.shed_from, settings.inside) == (3.0, 3.0)
    assert settings.worth == 'CASE WHEN "device" >= 3 THEN 0 WHEN "device" IS NOT NULL THEN 1 END'
    shedder = gold("balance-sic", projection=False).classes["gold"].build_shedder(seed=0)
    assert shedder is not None
    assert shedder.config.projection is False  # type: ignore[attr-defined]


def test_a_window_is_over_the_column_named_else_the_streams_own_else_arrival() -> None:
    settings = gold("window", size="500ms").classes["gold"].shedder_config()
    assert isinstance(settings, WindowSettings)
    assert settings.size_us == 500_000
    assert (settings.column_of("at"), settings.column_of(None)) == ("at", "_arrival")
    named = gold("window", size=1, column="when").classes["gold"].shedder_config()
    assert named.column_of("at") == "when"


def test_another_shedder_of_a_running_class_starts_from_its_own_defaults() -> None:
    config = ClassConfig(target_s=8.0, shedder="window", shedder_settings={"size": "1s"})
    assert config.changed({"shedder": "random"}).shedder_settings == {}
    assert config.changed({"priority": 2}).shedder_settings == {"size": "1s"}
    with pytest.raises(InvalidInputError, match="at most the target"):
        config.changed({"target": "500ms"})
