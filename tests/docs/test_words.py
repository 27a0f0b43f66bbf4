"""What the project says about where it was made: nothing. No registry host, no path of one machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "docs", "examples", "bench", "scripts", "tests", ".ci")
FILES = ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "requirements.lock", "LICENSE")
SUFFIXES = {"", ".py", ".md", ".sh", ".yaml", ".csv", ".out", ".toml", ".lock"}

HOSTS = {"keepachangelog.com", "semver.org", "www.apache.org"}
"""Hosts that may be named. A registry is the user's choice: the lock file has hashes, not addresses."""

REGISTRY = re.compile(r"index-url\s+\S*/|--(?:extra-)?index-url=|py" + r"pi\.org|python" + r"hosted|/simple/")
"""Built of pieces, or this file would find itself."""

MACHINE_PATH = re.compile(r"(?<![\w.~$})/\-])/(?:home|work|root|Users|mnt|opt|srv|var|tmp|data)/\w")
WINDOWS_PATH = re.compile(r"\b[A-Z]:\\\\?\w")

pytestmark = pytest.mark.docs


def texts() -> list[Path]:
    found = [ROOT / name for name in FILES]
    for folder in FOLDERS:
        found += [
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts
        ]
    return found


def faults(text: str) -> list[str]:
    hosts = re.findall(r"https?://([^/\s\"')>\]]+)", text)
    found = [f"host {host}" for host in hosts if host not in HOSTS]
    for pattern in (REGISTRY, MACHINE_PATH, WINDOWS_PATH):
        found += [match[0] for match in pattern.finditer(text)]
    return found


def test_there_is_something_to_read() -> None:
    names = {path.name for path in texts()}
    assert {"README.md", "policies.md", "engine.py", "requirements.lock", "setup.sh"} <= names


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): faults(path.read_bytes().decode("utf-8", "replace"))
        for path in texts()
        if path != Path(__file__).resolve()
    }
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "text",
    [
        "https://packages.example.org/x",
        "pip install --index-url=x",
        "from py" + "pi.org",
        "open('/" + "home/me/x')",
        "see /" + "work/x",
        "C:" + "\\data",
    ],
)
def test_a_fault_is_found(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text", ["src/data/x", "../shared/data", "#!/usr/bin/env bash", "/path/to/python", "--no-emit-index-url"]
)
def test_a_harmless_text_passes(text: str) -> None:
    assert faults(text) == []
