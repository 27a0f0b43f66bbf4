"""Finished parts of a long bench are kept for a run of the same code with the same settings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.bench.parts import Parts, code_at
from penstock.bench.runner import BenchRun
from penstock.vocabulary.errors import InvalidInputError


def test_a_run_that_was_cut_off_goes_on_with_the_parts_that_it_had_finished(tmp_path: Path) -> None:
    path, measured = tmp_path / "spark-wide.json", list[str]()

    def measure(name: str) -> dict[str, float]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(name)
        return {"rate": float(len(measured))}

    def run(names: str) -> list[dict[str, float]]:
        bench = BenchRun(parts=Parts(path, {"seed": 0}, "abc"))
        return [bench.part(name, lambda name=name: measure(name)) for name in names]  # type: ignore[misc]

    with pytest.raises(KeyboardInterrupt):
        run("xyz")
    measured.clear()
    assert run("xyz") == [{"rate": 1.0}, {"rate": 2.0}, {"rate": 1.0}]
    assert measured == ["z"]


def test_without_a_folder_for_them_parts_are_measured_each_time() -> None:
    assert [BenchRun().part("x", lambda n=n: n) for n in (1, 2)] == [1, 2]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("run", "code", "text"),
    [
        ({"seed": 0}, "other", "the code with which it was begun; got: 'other', and 'abc' in "),
        ({"seed": 1}, "abc", "the seed with which it was begun; got: 1, and 0 in "),
    ],
    ids=["other code", "another seed"],
)
def test_parts_of_another_run_are_refused(tmp_path: Path, run: dict[str, int], code: str, text: str) -> None:
    path = tmp_path / "parts.json"
    Parts(path, {"seed": 0}, "abc").part("x", lambda: 1)
    with pytest.raises(InvalidInputError, match=text):
        Parts(path, run, code)


def test_code_is_named_by_its_commit_and_by_whether_files_were_changed_since(tmp_path: Path) -> None:
    assert code_at(tmp_path) == "unknown"
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    for words in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    commit = code_at(tmp_path)
    assert len(commit) == 12
    (tmp_path / "new").touch()
    assert code_at(tmp_path) == f"{commit}+"
