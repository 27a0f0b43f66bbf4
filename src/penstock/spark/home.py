"""A home of Spark whose Python processes start quickly.

Spark names `python/lib/pyspark.zip` of its home first in the path of all Python processes that it starts. The
file holds no compiled code: each process compiles PySpark again. That takes more than a second of CPU time,
and Spark gives the process of a source ten seconds to connect. In a home without the file, processes import
the installed PySpark, which is the same.
"""

from __future__ import annotations

import importlib.util
import os
import zlib
from contextlib import suppress
from pathlib import Path

NEEDED = ("bin", "jars")
"""What a JVM on this machine needs of its home."""


def link_home(home: Path) -> bool:
    """Fills a directory with links to the installed Spark, without its zipped Python.

    Returns:
        Whether Spark is installed here, as a package of this Python.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None or not (Path(found.origin).parent / "jars").is_dir():
        return False
    home.mkdir(parents=True, exist_ok=True)
    for name in NEEDED:
        target, link = Path(found.origin).parent / name, home / name
        if not link.is_symlink() or link.readlink() != target:
            beside = home / f"{name}.{os.getpid()}"
            with suppress(FileExistsError):
                beside.symlink_to(target)
            beside.replace(link)  # at once: another process may use it
    return True


def own_home() -> Path | None:
    """A home in the user's cache, for JVMs on this machine; `None` if there can be none.

    It stays: a JVM reads its jars until its very end. Each installed Spark has a home of its own.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    number = zlib.crc32(os.fsencode(found.origin))
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = cache / "penstock" / f"spark-{number:08x}"
        return home if link_home(home) else None
    except (OSError, RuntimeError):  # nothing may be written there, or the user has no home
        return None
