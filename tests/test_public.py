"""What `import penstock` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock


def test_every_public_name_is_there_and_completed() -> None:
    assert dir(penstock) == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert callable(penstock.attach)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'attatch'"):
        penstock.attatch  # type: ignore[attr-defined]


def test_importing_penstock_loads_no_spark() -> None:
    code = "import sys, penstock; print('pyspark' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
