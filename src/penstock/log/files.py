"""Small files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replaces a file's content; after a crash it has the old content or the new."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
