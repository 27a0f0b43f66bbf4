"""The README and the pages: snippets print what stands there, links lead somewhere, nothing is left out.

A page's blocks run in order in one empty folder that has the examples in it:

    console     lines after `$ ` are commands; the lines between them are what they print, compared exactly
    python      is run; a `text` block right after it is what it prints, compared exactly
    sh          commands whose output is not shown; `make x` must be a target, the rest is run
    json, yaml  must be JSON, must be a scenario, a flow (with classes) or a pipeline (with queries)

A block is left out by a comment on the line before it: <!-- not run: why -->, as those that start a JVM are.
Its Python must still compile and its commands must exist. Slow commands run smaller.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import typer
import yaml
from tests.effort import THOROUGH

import penstock.cli.simulated.demo as demo
from penstock.bench.registry import load_benches
from penstock.cli import app, main
from penstock.config.flow import load_flow_config
from penstock.pipeline.spec.load import load_pipeline
from penstock.sim.scenario import parse_scenario
from penstock.sim.workloads.arrivals import s_r
from penstock.vocabulary.model import (
    Admission,
    BatchTiming,
    Decision,
    DelayStats,
    Expected,
    Observation,
    WaitingRows,
)

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINKED = [README, ROOT / "CHANGELOG.md", *PAGES]
RUN = [README, *PAGES]
LONGEST_LINE = 110

SHORT_DEMO = {"name": "demo", "duration_s": 20.0}
"""The demo has no option for its length; 400 s of five managers would be the slowest test of all."""

pytestmark = pytest.mark.docs


def name_of(page: Path) -> str:
    return page.name


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `left_out` is why it is not run."""

    line: int
    language: str
    text: str
    left_out: str | None


def blocks(page: str) -> Iterator[Block]:
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        if lines[number].startswith("```"):
            end = next(i for i in range(number + 1, len(lines)) if lines[i] == "```")
            mark = re.fullmatch(r"<!-- not run: (.+) -->", lines[number - 1] if number else "")
            text = "\n".join(lines[number + 1 : end])
            yield Block(number + 1, lines[number].removeprefix("```"), text, mark[1] if mark else None)
            number = end
        number += 1


WIDE = ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that change how tables are printed."""


def run(arguments: list[str], folder: Path) -> str:
    plain = {k: v for k, v in os.environ.items() if k not in WIDE}
    ran = subprocess.run(
        arguments, capture_output=True, text=True, cwd=folder, check=False, timeout=300, env=plain
    )
    assert ran.returncode == 0, f"{arguments}: {ran.stderr}"
    return ran.stdout


def run_python(text: str, folder: Path, where: str) -> str:
    """In this process, too; `make test-all` has a fresh one for each, which has imported nothing yet."""
    if THOROUGH:
        return run([sys.executable, "-c", text], folder)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        exec(compile(text, where, "exec", dont_inherit=True), {"__name__": "__main__"})
    return printed.getvalue()


def run_penstock(arguments: list[str], folder: Path) -> str:
    """In this process: to start one for each command would take longer than what they do."""
    printed, complaints = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(complaints),
    ):
        for name in WIDE:
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        patch.setattr(demo, "SCENARIO", SHORT_DEMO)
        code = main(arguments)
    assert code == 0, f"penstock {arguments}: {complaints.getvalue()}"
    return printed.getvalue()


def run_command(command: str, folder: Path) -> str:
    """Runs a line of a shell block; a slow one smaller."""
    words = shlex.split(command, comments=True)
    if Path(words[0]).name != "penstock":
        assert words[0] in ("printf", "penstock"), f"the docs run printf and penstock, not {words[0]}"
        return run(["sh", "-c", command], folder)
    if words[1] == "demo":
        assert "--simulated" in words, "the demo on Spark takes two minutes: mark its block as not run"
    quick = ["--quick"] if words[1:3] == ["bench", "run"] else []
    return run_penstock([*words[1:], *quick], folder)


def tidy(text: str) -> list[str]:
    """Lines without trailing blanks, which tables have and editors remove."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_snippets_of_a_page_print_what_stands_there(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    before = None
    printed = ""
    for block in blocks(page.read_text(encoding="utf-8")):
        where = f"{page.name}:{block.line}"
        if block.left_out is not None:
            check_left_out(block, where)
            continue
        if block.language == "console":
            check_console(block.text, tmp_path, where)
        elif block.language == "sh":
            check_shell(block.text, tmp_path)
        elif block.language == "python":
            printed = run_python(block.text, tmp_path, where)
        elif block.language == "text":
            if before == "python":
                assert tidy(printed) == tidy(block.text), where
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            check_yaml(block.text, where)
        else:
            pytest.fail(
                f"{where}: a block is console, sh, python, text, json or yaml, not {block.language!r}"
            )
        before = block.language


def check_console(text: str, folder: Path, where: str) -> None:
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert parts[0] == "", f"{where}: a console block begins with a command"
    for part in parts[1:]:
        command, _, shown = part.partition("\n")
        assert tidy(run_command(command, folder)) == tidy(shown), f"{where}: {command}"


def check_yaml(text: str, where: str) -> None:
    content = yaml.safe_load(text)
    if "queries" in content:
        load_pipeline(content)
    elif "classes" in content:
        load_flow_config(content)
    else:
        parse_scenario(content, where)


def check_left_out(block: Block, where: str) -> None:
    if block.language == "python":
        compile(block.text, where, "exec")
        return
    known = [command.split() for command in commands(typer.main.get_command(app), "penstock")]
    for line in block.text.splitlines():
        words = line.removeprefix("$ ").split()
        if words[:1] == ["penstock"] and (block.language == "sh" or line.startswith("$ ")):
            assert any(words[: len(command)] == command for command in known), f"{where}: {line}"


def check_shell(text: str, folder: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in text.splitlines():
        words = command.split()
        if words[0] == "make":
            assert words[1] in targets
        else:
            run_command(command, folder)


def test_the_first_screen_has_what_a_newcomer_looks_for() -> None:
    screen = README.read_text(encoding="utf-8").partition("\n## ")[0]
    for part in ("```sh\nmake demo", "make test", "```console", "<!-- table: ", "](docs/images/demo.png)"):
        assert part in screen
    assert "What it is not for" in screen
    assert len(screen.splitlines()) <= 70


# -- the reproduced table -------------------------------------------------------------------------


def shown_table() -> dict[str, tuple[float | None, float]]:
    """(paper, ours) by name, as the README has them."""
    table = README.read_text(encoding="utf-8").partition("<!-- table: pham2016/table4 -->\n")[2]
    shown = {}
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        name, paper, ours = (cell.strip() for cell in line.strip("|").split("|"))
        shown[name] = (float(paper) if paper else None, float(ours))
    return shown


def test_the_readme_quotes_the_paper_as_the_bench_does() -> None:
    expected = {row.name: row.paper for row in load_benches()["pham2016/table4"].expected}
    shown = {name: paper for name, (paper, _) in shown_table().items()}
    assert shown
    assert shown == {name: expected[name] for name in shown}


@pytest.mark.long
@pytest.mark.skipif("synthetic" in s_r().name, reason="the README's figures are of the real trace")
def test_the_readmes_own_figures_still_come_out(tmp_path: Path) -> None:
    # one seed instead of five, so near the printed mean and not equal to it
    result = tmp_path / "table4.json"
    main(["bench", "run", "pham2016/table4", "--quick", "--json", str(result)])
    rows = {row["name"]: row["ours"] for row in json.loads(result.read_text(encoding="utf-8"))["rows"]}
    allowed = {"violation_avg_s": 0.02, "violation_max_s": 0.5, "loss_percent": 0.3}
    for name, (_, ours) in shown_table().items():
        assert rows[name] == pytest.approx(ours, abs=allowed[name.partition("_")[2]]), name


# -- links and coverage ---------------------------------------------------------------------------


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_linked_from_the_readme() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in PAGES} <= set(links(README))


def commands(group: object, prefix: str) -> Iterator[str]:
    inner = getattr(group, "commands", {})
    if not inner:
        yield prefix
    for name, command in inner.items():
        yield from commands(command, f"{prefix} {name}")


def test_every_command_is_mentioned_in_the_docs() -> None:
    known = list(commands(typer.main.get_command(app), "penstock"))
    assert "penstock bench run" in known
    text = "\n".join(page.read_text(encoding="utf-8") for page in RUN)
    assert [command for command in known if command not in text] == []


@pytest.mark.parametrize(
    "kind", [Observation, Decision, Admission, Expected, DelayStats, WaitingRows, BatchTiming]
)
def test_every_field_that_crosses_the_seam_is_explained(kind: type) -> None:
    text = (ROOT / "docs" / "plants.md").read_text(encoding="utf-8")
    assert [field.name for field in fields(kind) if f"`{field.name}`" not in text] == []


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_a_page_fits_a_terminal_side_by_side(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [i for i, line in enumerate(lines, 1) if len(line) > LONGEST_LINE] == []


# -- the checks themselves ------------------------------------------------------------------------


def test_a_snippet_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="page"):
        check_console("$ penstock --version\npenstock 99", tmp_path, "page")
    with pytest.raises(AssertionError, match="penstock"):
        check_shell("curl example.org", tmp_path)
    with pytest.raises(AssertionError, match="not run"):
        check_shell("penstock demo", tmp_path)
    with pytest.raises(AssertionError, match="page"):
        check_left_out(Block(1, "sh", "penstock rnu x.yaml", "starts a JVM"), "page")
    with pytest.raises(SyntaxError):
        check_left_out(Block(1, "python", "flow = (", "starts a JVM"), "page")


def test_blocks_are_found_with_their_marks() -> None:
    page = "a\n```sh\nx\n```\n<!-- not run: needs a network -->\n```sh\ny\n```\n"
    assert [(b.text, b.left_out) for b in blocks(page)] == [("x", None), ("y", "needs a network")]
