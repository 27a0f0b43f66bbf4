"""How much a test tries: a little in `make test`, a lot in `make test-all`."""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = os.environ.get("PENSTOCK_TESTS") == "thorough"


def tries(quick: int, thorough: int) -> int:
    """How many examples, or repetitions, a test has."""
    return thorough if THOROUGH else quick
