"""Files that commands write; an existing file is overwritten only with --force."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.vocabulary.errors import InvalidInputError

STDOUT = "-"


def claim_output(path: str | Path | None, force: bool) -> None:
    """Rejects a file that exists, unless forced, and makes its folder; call it before the work."""
    if path is None or str(path) == STDOUT:
        return
    target = Path(path)
    if target.is_dir():
        raise InvalidInputError("an output is a file", f"the folder {target}", "add a file name")
    if target.exists() and not force:
        raise InvalidInputError(
            "an existing file is not overwritten", target, "add --force, or choose another file"
        )
    target.parent.mkdir(parents=True, exist_ok=True)


def write_json(path: str | Path, value: object) -> None:
    """Writes JSON to a file, or to standard output for `-`."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    if str(path) == STDOUT:
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8")
