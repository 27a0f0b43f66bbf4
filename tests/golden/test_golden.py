"""The golden traces: they hold what they are for, and a difference is found where it is."""

from __future__ import annotations

import copy
import json

import pytest
from tests.golden.__main__ import main
from tests.golden.scenarios import SCENARIOS
from tests.golden.trace import Line, first_difference, read, record

QUICK = "manager_deadline"


@pytest.mark.briefly(
    *("shedder_balance_sic", "shared_stream", "several_readers_of_a_query", "lost_when_running"),
    *("capacity_dilos", "changes_while_it_runs"),
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_goes_as_it_was_recorded(name: str) -> None:
    expected = read(name)
    assert expected is not None
    assert str(first_difference(expected, record(SCENARIOS[name]))) == "None"


def test_every_scenario_has_a_trace_and_every_trace_a_scenario() -> None:
    assert all(read(name) for name in SCENARIOS)
    assert len(SCENARIOS) >= 20


def test_a_scenario_is_the_same_each_time() -> None:
    assert first_difference(record(SCENARIOS[QUICK]), record(SCENARIOS[QUICK])) is None


def events() -> list[Line]:
    return [line for name in SCENARIOS for line in read(name) or []]


def test_the_traces_have_all_that_a_grant_may_be() -> None:
    """A redesign that loses one of these must not go unnoticed."""
    lines = events()
    offsets = [line["offset"] for line in lines if line["kind"] == "proposed"]
    units = {offset.get("plan", {}).get("unit", "row") for offset in offsets}
    assert units == {"row", "segment", "key", "chosen", "utility", "window"}
    assert any(offset.get("tick") for offset in offsets)
    assert any(offset.get("ungoverned") for offset in offsets)
    assert any(line.get("aside") for line in lines)
    kinds = {line["kind"] for line in lines}
    assert {"held", "left", "finished", "last_stage"} <= kinds
    shed = {name for offset in offsets for name, rows in zip("aslep", offset["books"], strict=True) if rows}
    assert {"s", "l", "p"} <= shed, "sampled, late and set aside"


@pytest.mark.parametrize(
    ("path", "value"),
    [(("offset", "end", "0"), 7), (("offset", "books"), [1, 2, 3, 4, 5]), (("at_s",), 99.0)],
)
def test_a_difference_is_said_with_its_moment(path: tuple[str, ...], value: object) -> None:
    expected = read(QUICK)
    assert expected is not None
    at = next(i for i, line in enumerate(expected) if i > 20 and line["kind"] == "proposed")
    changed = copy.deepcopy(expected)
    inner = changed[at]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value  # type: ignore[index]
    found = first_difference(expected, changed)
    assert found is not None
    assert found.line == at + 1
    assert f"{expected[at]['at_s']:.3f} s" in str(found)
    assert path[0] in found.where


def test_a_trace_that_ends_early_differs() -> None:
    expected = read(QUICK)
    assert expected is not None
    found = first_difference(expected, expected[:-1])
    assert found is not None
    assert (found.expected, found.got) == (len(expected), len(expected) - 1)


def test_rounding_in_the_last_digits_is_no_difference() -> None:
    expected = read(QUICK)
    assert expected is not None
    text = json.dumps(expected).replace('"at_s": 50.02,', '"at_s": 50.0200000000001,')
    assert text != json.dumps(expected)
    assert first_difference(expected, json.loads(text)) is None


def test_an_unknown_scenario_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "got: nonsense; hint: --list" in capsys.readouterr().err


def test_the_command_says_which_scenarios_are_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([QUICK]) == 0
    assert "1 of 1 scenarios are as they were recorded" in capsys.readouterr().out
