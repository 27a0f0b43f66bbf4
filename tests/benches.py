"""Modules of the benches, which are not part of the installed package."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from penstock.bench import load_benches


@cache
def bench_module(name: str) -> Any:
    """A module beside a bench, such as `micro.sampled_windows`."""
    package = load_benches()["micro/fuzz"].function.__module__.split(".")[0]
    return importlib.import_module(f"{package}.{name}")
