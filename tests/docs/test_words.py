"""Words that no text has: a registry host, a path of one machine, and "segment" for a shared stream."""

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

SHARED = re.compile(
    r"shared segments?"
    r"|\b(?:writes?|wrote|owns?|(?:writer|owner) of|behind|through) (?:(?:an?|the|its|this) )?segments?\b"
    r"|\bshares? an? segment\b"
    r"|segments? (?:that|which) (?:(?:an?|the|its) )?(?:quer|writer)"
    r"|segments?'?s? (?:writer|owner)"
    r"|\b(?:lab|virtual)\.segment\(",
    re.IGNORECASE,
)
"""A segment is a part of a log. What a query writes for others is a shared stream."""

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


def old_names(text: str) -> list[str]:
    """Where a text says "segment" and means a shared stream, in names of functions as well."""
    return [match[0] for match in SHARED.finditer(" ".join(text.replace("_", " ").split()))]


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


def test_a_stream_that_queries_share_is_called_a_shared_stream() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): old_names(path.read_bytes().decode("utf-8", "replace"))
        for path in texts()
        # the log writes segments
        if path != Path(__file__).resolve() and "streams" not in path.parts
    }
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "text",
    [
        "By the place of a shared segment, the query that writes it.",
        "A query with these readers writes a\n    segment.",
        "def test_behind_a_segment_that_sheds():",
        "whether classes 1 and 3 share a segment",
        "the segment that its query writes",
        "what a segment's writer lost",
        'lab.segment(cluster, "gold", "writer")',
    ],
)
def test_the_old_name_of_a_shared_stream_is_found(text: str) -> None:
    assert old_names(text)


@pytest.mark.parametrize(
    "text", ["The groups of one window share its segments", "a sampled segment", "segments of the rows"]
)
def test_a_segment_of_a_log_keeps_its_name(text: str) -> None:
    assert old_names(text) == []


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
