"""What a flow that names a shared control plane is refused, and what it is warned of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.config.flow import load_flow_config
from penstock.spark.driver.shared import check_shared
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

CLASSES: dict[str, Any] = {"gold": {"target": "2s", "priority": 6}, "bulk": {"target": "30s"}}


def check(mine: Mapping[str, Any], theirs: Mapping[str, Any] | None = None) -> None:
    plane = load_flow_config({"log": "/logs", "classes": CLASSES, **(theirs or {})})
    flow = load_flow_config({"log": "/logs", "classes": CLASSES, "address": "unix:///x", **mine})
    check_shared(flow, lambda message: {"config": plane.to_json()} if message == {"op": "config"} else {})


def test_a_flow_that_asks_for_what_holds_there_is_neither_refused_nor_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check({})
    check({"classes": {"gold": {"target": "2s", "priority": 6, "shed_lane": True}}})
    check({"dry_run": True}, {"dry_run": True})
    assert caplog.messages == []


def test_a_class_that_the_shared_control_plane_lacks_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"glod.*did you mean 'gold'\?"):
        check({"classes": {"glod": {"target": "2s"}}})


@pytest.mark.parametrize(
    "mine", [{"dry_run": True}, {"classes": {"gold": {"target": "2s", "dry_run": True}}}]
)
def test_a_dry_run_where_rows_are_shed_is_refused(mine: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInputError, match="dry_run is a setting of the shared control plane; got: class gold"
    ):
        check(mine)


def test_settings_that_do_not_hold_are_said_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    check({"slots": 2, "classes": {"gold": {"target": "3s", "manager": "aloma", "priority": 6}}})
    (message,) = caplog.messages
    assert message.endswith("slots auto (not 2), gold.manager deadline (not aloma), gold.target_s 2 (not 3)")
