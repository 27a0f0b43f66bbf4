"""Lets the driver and Spark's Python workers import modules beside a pipeline's file, after all others."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path


@contextmanager
def importable(base: Path | None) -> Iterator[None]:
    """Lets the driver, and Python processes that start meanwhile, import the modules of a directory.

    PYTHONPATH comes before Python's own modules: a `json.py` there would break every process that starts. So
    PYTHONPATH gets a folder of links, to modules alone that have no namesake elsewhere.

    Args:
        base: The directory; `None` for no directory.
    """
    if base is None:
        yield
        return
    place, before = base.absolute(), os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="penstock-modules-") as folder:
        for module in modules_of(place):
            (Path(folder) / module.name).symlink_to(module)
        sys.path.append(str(place))
        os.environ["PYTHONPATH"] = folder if not before else f"{before}{os.pathsep}{folder}"
        try:
            yield
        finally:
            sys.path.remove(str(place))
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


def modules_of(directory: Path) -> list[Path]:
    """Modules and packages of a directory, except those that can be imported from elsewhere too."""
    elsewhere = [path for path in sys.path if Path(path or ".").resolve() != directory.resolve()]
    found = []
    for path in sorted(directory.iterdir()):
        name = path.stem if path.suffix == ".py" else path.name
        is_module = name.isidentifier() and (path.suffix == ".py" or path.is_dir())
        if is_module and name not in sys.stdlib_module_names and not PathFinder.find_spec(name, elsewhere):
            found.append(path)
    return found
