"""How tests are collected where pytest has no cache, as on a read-only disk."""

from __future__ import annotations

import pytest
from tests.conftest import has_all_cases

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [("", True), ("-p no:cacheprovider", True), ("--lf", False), ("-p no:cacheprovider a.py::test_b", False)],
)
def test_all_cases_of_a_test_are_collected_unless_some_are_named_or_failed_last(
    pytester: pytest.Pytester, arguments: str, whole: bool
) -> None:
    (pytester.path / "a.py").touch()
    assert has_all_cases(pytester.parseconfig(*arguments.split())) is whole
