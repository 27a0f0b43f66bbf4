"""docs/policies.md has every setting of every load manager with its default, and every field of its state."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock.policies.load import LOAD_MANAGERS, manager_config
from penstock.policies.load.design import Controller
from penstock.policies.shedding import SHEDDERS, shedder_config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.docs


def section(manager: str, page: str = PAGE) -> str:
    """The manager's section, from its heading to the next."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)
    return next(part for part in parts if part.partition("\n")[0].lower() == manager)


def documented(manager: str, page: str = PAGE) -> dict[str, str]:
    """Default by setting, from the table under the mark."""
    table = section(manager, page).partition(f"<!-- settings: {manager} -->\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \| .+ \|$", table, re.MULTILINE))


def written(value: Any) -> str:
    """A default as the page writes it."""
    if isinstance(value, Controller):
        return f"a={value.a:g}, b0={value.b0:g}, b1={value.b1:g}"
    return value if isinstance(value, str) else f"{value:g}"


@pytest.mark.parametrize("manager", LOAD_MANAGERS)
def test_every_setting_is_documented_with_its_default(manager: str) -> None:
    config = manager_config(manager)
    assert documented(manager) == {f.name: written(getattr(config, f.name)) for f in fields(config)}


@pytest.mark.parametrize("manager", LOAD_MANAGERS)
def test_every_field_of_the_state_is_documented(manager: str) -> None:
    state = section(manager).partition("**State.**")[2]
    assert state
    state_type = manager_config(manager).build().state_type
    assert [f.name for f in fields(state_type) if f"`{f.name}`" not in state] == []


@pytest.mark.parametrize("manager", LOAD_MANAGERS)
def test_a_section_has_problem_regimes_and_when(manager: str) -> None:
    for part in ("**Problem.**", "**Regimes.**", "**When.**"):
        assert part in section(manager)


def test_an_undocumented_setting_is_noticed() -> None:
    page = PAGE.replace("| `victims` |", "| `victim` |")
    assert "victims" not in documented("deadline", page)


SHEDDING_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "shedding.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("shedder", SHEDDERS)
def test_every_shedder_has_a_section_and_every_setting_its_default(shedder: str) -> None:
    assert f"\n### {shedder}\n" in SHEDDING_PAGE
    table = SHEDDING_PAGE.partition(f"<!-- settings: {shedder} -->\n")[2].partition("\n\n")[0]
    stated = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \| .+ \|$", table, re.MULTILINE))
    config = shedder_config(shedder)
    assert stated == {f.name: str(getattr(config, f.name)) for f in fields(config)}
