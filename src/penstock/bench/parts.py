"""Finished parts of a long bench, kept in a file: a run that was cut off goes on where it was."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from penstock.vocabulary.errors import InvalidInputError

T = TypeVar("T")


class Parts:
    """The finished parts of one bench.

    Figures of different code do not belong into one table, so a file is used again by the commit alone that
    began it.

    Args:
        path: The file; it need not be there.
        run: What the figures depend on beside the code, such as seed and repeats.
        code: Names the code; see `code_at`.
    """

    def __init__(self, path: Path, run: dict[str, Any], code: str) -> None:
        self._path, self._head = path, {"code": code, **run}
        self._found: dict[str, Any] = {}
        if path.exists():
            kept = json.loads(path.read_text())
            for name, value in self._head.items():
                if kept["head"].get(name) != value:
                    raise InvalidInputError(
                        f"a bench goes on with the {name} with which it was begun",
                        f"{value!r}, and {kept['head'].get(name)!r} in {path}",
                        "use that one, or another folder for --resume",
                    )
            self._found = kept["parts"]

    def part(self, name: str, measure: Callable[[], T]) -> T:
        """The result of a part as JSON has it: what is in the file, else what is measured now."""
        if name not in self._found:
            self._found[name] = measure()
            draft = self._path.with_suffix(".draft")
            draft.write_text(json.dumps({"head": self._head, "parts": self._found}))
            os.replace(draft, self._path)
        found: T = self._found[name]
        return found


def code_at(folder: Path) -> str:
    """The commit of a checkout, with a mark if files were changed since; `unknown` outside of one."""
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
