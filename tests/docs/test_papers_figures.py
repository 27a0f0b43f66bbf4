"""What the README says of the papers' figures is what the benches hold."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from penstock.bench.registry import figures_by_folder, load_benches
from penstock.bench.report import ExpectedRow, PaperFigures
from penstock.cli import main

ROOT = Path(__file__).parents[2]


def shown_figures() -> dict[str, list[int]]:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- figures -->\n")[2]
    lines = [line.strip("|").split("|") for line in table.partition("\n\n")[0].splitlines()[2:]]
    return {name.strip(): [int(cell) for cell in cells] for name, *cells in lines}


def test_the_readme_counts_the_papers_figures_as_the_benches_do() -> None:
    figures = figures_by_folder(load_benches().values())
    assert shown_figures() == {folder: [held.total, *held] for folder, held in figures.items()}


def readme_of(folder: str) -> str:
    return (ROOT / "bench/papers" / folder / "README.md").read_text(encoding="utf-8")


def expected_row(folder: str, bench: str, name: str) -> dict[str, str]:
    with (ROOT / "bench/papers" / folder / "expected.csv").open(encoding="utf-8", newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if (row["id"], row["name"]) == (bench, name)]
    return row


def test_the_differences_that_the_readme_names_are_the_benches() -> None:
    """The papers' figures and bounds are in expected.csv; ours are in the READMEs of the benches."""
    ratio = expected_row("tu2006", "fig12", "aurora_to_ctrl_violation")
    loss = expected_row("pham2016", "table8", "separate_class3_loss_percent")
    (our_ratio,) = re.findall(r"^\| nothing \| ([\d.]+) \|", readme_of("tu2006"), re.MULTILINE)
    ((our_loss, their_loss),) = re.findall(
        r"separate managers class 3 loses (\d+) %, not (\d+) %", " ".join(readme_of("pham2016").split())
    )
    assert (ratio["kind"], loss["kind"]) == ("at_least", "info")
    assert float(their_loss) == round(float(loss["paper"]))
    assert f"{our_ratio} for its {ratio['paper']}," in readme_of("tu2006")
    shown = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"Aurora violates {ratio['paper']} times as much as CTRL in tu2006 figure 12 and {our_ratio} times "
        f"here (held: at least {ratio['tolerance']}); with separate managers class 3 loses {their_loss} % in "
        f"pham2016 table 8 and {our_loss} % here (printed)."
    ) in shown


def test_the_readme_does_not_claim_that_tables_are_reproduced() -> None:
    assert "reproduced" not in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_figure_that_is_held_on_one_side_is_not_counted_as_one_that_comes_out() -> None:
    rows = [
        ExpectedRow("a", "loss", 3.0),
        ExpectedRow("b", "at_least", 205.0, 3.0, reason="see the README"),
        ExpectedRow("c", "info", 85.0, reason="costs are ours"),
        ExpectedRow("d", "at_most", None, 1.0),
        ExpectedRow("e", "info"),
    ]
    assert PaperFigures.of(rows) == (1, 1, 1)
    assert PaperFigures.of(rows).total == 3


def test_the_list_of_benches_says_how_figures_are_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", "list", "--json", str(tmp_path / "list.json")])
    printed = capsys.readouterr().out
    held = figures_by_folder(load_benches().values())["all"]
    (line,) = [line for line in printed.splitlines() if line.startswith("│ all ")]
    assert [cell.strip() for cell in line.split("│")[2:-1]] == [str(n) for n in (held.total, *held)]
    listed = json.loads((tmp_path / "list.json").read_text(encoding="utf-8"))
    assert sum(bench["paper_figures"]["within"] for bench in listed) == held.within
    assert {bench["id"] for bench in listed} == set(load_benches())
