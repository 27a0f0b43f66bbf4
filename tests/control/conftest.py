"""The virtual cluster of the micro-batch plant, in a test's own directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.sim.microbatch import Lab


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.open:
        yield made
