"""The bench harness on a bench folder of its own: finding, judging, printing, JSON, exit codes, messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner, Result

from penstock.bench import BenchRun, ExpectedRow, load_benches, registry
from penstock.cli import main
from penstock.cli.bench import bench_app
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError

HEADER = "id,name,paper,kind,tolerance,goal,reason\n"
RUN = """
    from penstock.bench import BenchRun, bench
    from .numbers import LOSS

    @bench("fig1", title="losses [of all]")
    def first(run: BenchRun) -> None:
        run.progress("measuring", advance=1, total=1)
        run.row("violation_ratio", 3.0)
        run.row("loss_percent", LOSS)
        if not run.quick:
            run.row("delay_s", run.repeat(lambda seed: 2.0 + seed))
        run.note("a finding")

    @bench("fig2", title="not good enough")
    def second(run: BenchRun) -> None:
        run.row("speed", 1.0)
"""
EXPECTED = HEADER + (
    "fig1,violation_ratio,2,ratio,,,\n"
    "fig1,loss_percent,20,loss,8,1,the paper's plant is another\n"
    "fig1,delay_s,4,delay,,,\n"
    "paper/fig2,speed,,at_least,2,,\n"
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a bench folder and makes it the one in force."""
    root = tmp_path / "bench"
    monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, str(root))

    def write(run: str = RUN, expected: str | None = EXPECTED, folder: str = "papers/paper") -> Path:
        where = root / folder
        where.mkdir(parents=True, exist_ok=True)
        (where / "run.py").write_text(dedent(run))
        (where / "numbers.py").write_text("LOSS = 27.5\n")
        if expected is not None:
            (where / "expected.csv").write_text(expected)
        return root

    return write


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(bench_app, [str(a) for a in arguments])


def error_of(*arguments: str | Path) -> str:
    """The message of the error that a command raises; `penstock.cli.main` turns it into exit code 2."""
    result = invoke(*arguments)
    assert isinstance(result.exception, PenstockError), result.output
    return str(result.exception)


# -- finding ------------------------------------------------------------------------------------


def test_every_marked_function_of_every_folder_is_listed_with_its_title(write: Write, tmp_path: Path) -> None:
    write()
    write(
        "from penstock.bench import bench\n@bench('decide', title='fast')\ndef f(run): ...\n",
        HEADER,
        "micro",
    )
    listed = invoke("list", "--json", tmp_path / "list.json")
    assert listed.exit_code == 0
    assert "losses [of all]" in listed.output
    assert [row["id"] for row in json.loads((tmp_path / "list.json").read_text())] == [
        "micro/decide",
        "paper/fig1",
        "paper/fig2",
    ]


def test_benches_of_this_checkout_are_found_from_the_source_file_and_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(registry.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert registry.find_root() == Path(__file__).parents[2] / "bench"
    assert {"micro/decide", "micro/engine"} <= set(load_benches())


def test_benches_are_found_above_the_working_directory_when_the_package_is_installed_elsewhere(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = write()
    monkeypatch.delenv(registry.ENVIRONMENT_VARIABLE)
    (tmp_path / "site" / "penstock" / "bench").mkdir(parents=True)
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "site" / "penstock" / "bench" / "registry.py"))
    monkeypatch.chdir(root / "papers")
    assert registry.find_root() == root


def test_without_a_bench_folder_the_hint_is_to_run_from_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(registry.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    monkeypatch.chdir(tmp_path)
    assert "hint: run from a checkout" in error_of("list")


def test_an_environment_variable_that_points_elsewhere_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, str(tmp_path))
    assert "PENSTOCK_BENCH names a folder that holds papers/ or micro/" in error_of("list")


def test_a_run_file_that_does_not_load_is_named(write: Write) -> None:
    write("import no_such_module\n")
    assert "run.py does not load: ModuleNotFoundError: No module named 'no_such_module'" in error_of("list")


def test_an_error_of_our_own_in_a_run_file_is_passed_on(write: Write) -> None:
    write("from penstock.bench import bench\nbench('a/b', title='x')\n")
    assert "a bench's name is one word; got: 'a/b'" in error_of("list")


def test_two_benches_of_one_name_are_rejected(write: Write) -> None:
    twice = "from penstock.bench import bench\n" + "@bench('a', title='x')\ndef {}(run): ...\n" * 2
    write(twice.format("f", "g"), HEADER)
    assert "paper: bench names differ; got: 'a'" in error_of("list")


def test_an_unknown_id_is_rejected_with_the_nearest(write: Write) -> None:
    write()
    result = invoke("run", "paper/fig3")
    assert isinstance(result.exception, UnknownNameError)
    assert "bench id must be one of paper/fig1, paper/fig2" in str(result.exception)
    assert "did you mean 'paper/fig" in str(result.exception)


def test_no_id_at_all_is_rejected() -> None:
    assert invoke("run").exit_code == 2
    with pytest.raises(InvalidInputError, match="a bench id is needed"):
        registry.select({}, [])


@pytest.mark.parametrize("wanted", ["all", "paper", "paper/*", "*/fig?"])
def test_all_a_folder_and_a_pattern_run_several(write: Write, wanted: str) -> None:
    write()
    assert [b.id for b in registry.select(load_benches(), [wanted, "paper/fig2"])] == [
        "paper/fig1",
        "paper/fig2",
    ]


# -- expected.csv -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ("id,name\n", "has the columns id,name,paper,kind,tolerance,goal,reason; got: id,name"),
        (HEADER + "fig1,a,1\n", "has 7 cells"),
        (HEADER + "fig1,a,1,ratio,,,too,many\n", "has 7 cells"),
        (HEADER + "fig1,a,2x,ratio,,,\n", "paper is a number or empty; got: '2x'"),
        (HEADER + "fig1,a,2,ratio,inf,,\n", "tolerance is a number or empty; got: 'inf'"),
        (HEADER + "fig9,a,2,ratio,,,\n", "id must be one of fig1, fig2; got: 'fig9'"),
        (HEADER + "fig1,a,2,ratio,,,\nfig1,a,2,ratio,,,\n", "a row of fig1 is listed once; got: 'a'"),
        (HEADER + "fig1,a,2,ration,,,\n", "did you mean 'ratio'"),
        (HEADER + "fig1,a,,loss,,,\n", "a loss is held against a paper's figure; got: None"),
        (HEADER + "fig1,a,0,delay,,,\n", "a delay is relative to a figure above 0"),
        (HEADER + "fig1,a,,at_most,,,\n", "at_most needs a bound"),
        (HEADER + "fig1,a,2,ratio,3,,\n", "a check wider than the default needs a reason; got: ratio 3"),
        (HEADER + "fig1,a,205,at_least,3,,\n", "wider than the default needs a reason; got: at_least 3"),
        (HEADER + "fig1,a,205,info,,,\n", "wider than the default needs a reason; got: info"),
    ],
)
def test_a_wrong_line_of_expected_csv_is_rejected(write: Write, expected: str, message: str) -> None:
    write(RUN, expected)
    with pytest.raises(InvalidInputError, match=message):
        load_benches()


def test_a_folder_without_expected_csv_is_rejected(write: Write) -> None:
    write(expected=None)
    assert "a bench folder has an expected.csv" in error_of("list")


@pytest.mark.parametrize(
    ("row", "inside", "outside", "text"),
    [
        (ExpectedRow("r", "ratio", 10), (5, 20), (4.9, 20.1), "x2"),
        (ExpectedRow("r", "ratio", 10, 1.1), (9.5, 11), (9, 12), "x1.1"),
        (ExpectedRow("r", "ratio", 10, 5, reason="why"), (2, 50), (1.9, 51), "x5"),
        (ExpectedRow("r", "loss", 0), (0, 3), (3.1,), "±3 points"),
        (ExpectedRow("r", "loss", 20, goal=1.5), (17, 23), (16.9, 23.1), "±3 points, goal ±1.5 points"),
        (ExpectedRow("r", "delay", 2), (1.4, 2.6), (1.39, 2.61), "±30 %"),
        (ExpectedRow("r", "at_least", None, 3), (3, 9), (2.9,), "at least 3"),
        (ExpectedRow("r", "at_most", None, 100, 20), (0, 100), (101,), "at most 100, goal 20"),
        (ExpectedRow("r", "at_most", goal=5), (5,), (5.1,), "at most 5"),
        (ExpectedRow("r", "info"), (-1e9, 1e9), (), "none"),
    ],
)
def test_each_kind_has_its_tolerance(
    row: ExpectedRow, inside: tuple[float, ...], outside: tuple[float, ...], text: str
) -> None:
    assert all(row.holds(value) for value in inside)
    assert not any(row.holds(value) for value in outside)
    assert row.tolerance_text() == text


@pytest.mark.parametrize(
    ("row", "difference"),
    [
        (ExpectedRow("r", "ratio", 10), "x1.2"),
        (ExpectedRow("r", "loss", 10), "+2.00 points"),
        (ExpectedRow("r", "delay", 10), "+20 %"),
        (ExpectedRow("r", "at_most", 0, 99, reason="why"), "+12"),
        (ExpectedRow("r", "info"), ""),
    ],
)
def test_the_difference_is_in_the_unit_of_the_kind(row: ExpectedRow, difference: str) -> None:
    assert row.difference(12.0) == difference


# -- running ------------------------------------------------------------------------------------


def test_a_run_prints_the_table_with_the_reason_of_a_wider_tolerance_and_the_notes(write: Write) -> None:
    write()
    result = invoke("run", "paper/fig1", "--seed", "1", "--repeats", "3")
    assert result.exit_code == 0, result.output
    for text in ("losses [of all]", "x1.5", "+7.50 points", "±8 points, goal ±1 points *", "+0 %"):
        assert text in result.output
    assert "short of goal" in result.output
    assert "* loss_percent: the paper's plant is another" in result.output
    assert "- a finding" in result.output
    assert "QUICK" not in result.output


def test_a_row_outside_its_tolerance_makes_the_exit_code_1_and_json_is_still_written(
    write: Write, tmp_path: Path
) -> None:
    write()
    result = invoke("run", "paper/fig2", "--json", tmp_path / "new" / "out.json")
    assert result.exit_code == 1
    assert "NO" in result.output
    assert json.loads((tmp_path / "new" / "out.json").read_text())["ok"] is False


def test_exit_codes_are_0_within_1_outside_and_2_for_bad_input(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    assert main(["bench", "run", "paper/fig1", "--repeats", "4"]) == 0
    assert main(["bench", "run", "paper/fig2"]) == 1
    capsys.readouterr()
    assert main(["bench", "run", "paper/fig3"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_id_gives_one_json_object(write: Write) -> None:
    write()
    result = invoke("run", "paper/fig1", "--json", "-", "--seed", "2", "--repeats", "1")
    report = json.loads(result.stdout)
    assert set(report) == {"id", "ok", "quick", "rows", "environment", "seed"}
    assert (report["id"], report["ok"], report["quick"], report["seed"]) == ("paper/fig1", True, False, 2)
    assert report["rows"][1] == {
        "name": "loss_percent",
        "paper": 20.0,
        "ours": 27.5,
        "tolerance": "±8 points, goal ±1 points",
        "ok": True,
    }
    assert set(report["environment"]) == {"python", "numpy", "penstock", "cpu_count", "platform"}
    assert "loss_percent" in result.stderr


def test_several_ids_give_a_json_list(write: Write) -> None:
    write()
    result = invoke("run", "all", "--json", "-")
    assert [report["id"] for report in json.loads(result.stdout)] == ["paper/fig1", "paper/fig2"]
    assert json.loads(result.stdout)[1]["rows"][0]["paper"] is None
    assert result.exit_code == 1


def test_an_existing_json_file_is_only_overwritten_with_force(write: Write, tmp_path: Path) -> None:
    write()
    target = tmp_path / "out.json"
    target.write_text("mine")
    assert "an existing file is not overwritten" in error_of("run", "paper/fig1", "--json", target)
    assert "hint: add --force" in error_of("list", "--json", target)
    assert target.read_text() == "mine"
    invoke("run", "paper/fig1", "--json", target, "--force")
    assert json.loads(target.read_text())["id"] == "paper/fig1"


def test_a_folder_is_no_json_file_and_a_file_no_plot_folder(write: Write, tmp_path: Path) -> None:
    write()
    assert "an output is a file; got: the folder" in error_of("run", "paper/fig1", "--json", tmp_path)
    (tmp_path / "file").touch()
    assert "--plots names a folder" in error_of("run", "paper/fig1", "--plots", tmp_path / "file")


def test_plots_go_into_a_folder_that_is_made(write: Write, tmp_path: Path) -> None:
    write(
        "from penstock.bench import bench\n"
        "@bench('draw', title='x')\ndef draw(run): (run.plots / 'a.png').touch()\n",
        HEADER,
    )
    assert invoke("run", "paper/draw", "--plots", tmp_path / "new" / "plots").exit_code == 0
    assert (tmp_path / "new" / "plots" / "a.png").exists()


def test_quick_is_marked_and_may_leave_rows_out_which_it_says(write: Write) -> None:
    write()
    result = invoke("run", "paper/fig1", "--quick")
    assert result.exit_code == 0
    assert "QUICK" in result.output
    assert "not measured (quick): delay_s" in result.output


def test_a_listed_row_that_is_not_measured_is_an_error_after_the_table(write: Write, tmp_path: Path) -> None:
    write(expected=EXPECTED + "fig2,other,,info,,,\n")
    assert "paper/fig2 measures every row that expected.csv lists; got: no other" in error_of(
        "run", "paper/fig2", "--json", tmp_path / "out.json"
    )
    assert json.loads((tmp_path / "out.json").read_text())["ok"] is False


def test_a_measured_row_that_is_not_listed_is_an_error_even_when_quick(write: Write) -> None:
    write(expected=EXPECTED.replace("fig1,loss_percent,20,loss,8,1,the paper's plant is another\n", ""))
    assert "paper/fig1 measures only what expected.csv lists; got: loss_percent" in error_of(
        "run", "paper/fig1", "--quick"
    )
    assert "not listed" in invoke("run", "paper/fig1", "--quick").output


# -- what a bench function is handed --------------------------------------------------------------


def test_repeats_are_five_or_one_when_quick_or_as_told() -> None:
    assert (BenchRun().repeats, BenchRun(quick=True).repeats) == (5, 1)
    assert BenchRun(quick=True, repeats=3).repeats == 3
    with pytest.raises(InvalidInputError, match="repeats must be at least 1; got: 0"):
        BenchRun(repeats=0)


def test_repeat_averages_numbers_and_dicts_over_consecutive_seeds() -> None:
    run = BenchRun(seed=10, repeats=3)
    assert run.repeat(float) == 11.0
    assert run.repeat(lambda seed: {"a": float(seed), "b": 1.0}) == {"a": 11.0, "b": 1.0}
    with pytest.raises(InvalidInputError, match="every repeat measures the same names"):
        run.repeat(lambda seed: {str(seed): 1.0})


def test_a_row_is_a_finite_number_reported_once() -> None:
    run = BenchRun()
    run.row("a", 1)
    with pytest.raises(InvalidInputError, match="a row is reported once; got: 'a'"):
        run.row("a", 2)
    with pytest.raises(InvalidInputError, match="row b must be a finite number; got: nan"):
        run.row("b", float("nan"))


def test_progress_reaches_the_bar_and_is_ignored_without_one() -> None:
    told: list[object] = []
    BenchRun(on_progress=lambda *news: told.append(news)).progress("half", advance=1, total=2)
    BenchRun().progress("nobody listens")
    assert told == [("half", 1, 2)]


def test_without_a_terminal_progress_is_lines_on_stderr_and_not_in_the_results(write: Write) -> None:
    write()
    ran = invoke("run", "paper/fig1")
    assert "paper/fig1: measuring\n" in ran.stderr
    assert "measuring" not in ran.stdout


def test_loading_leaves_only_the_last_folders_modules_behind(write: Write) -> None:
    write()
    load_benches()
    assert "penstock_benches.paper.numbers" in sys.modules
    write("from penstock.bench import bench\n", HEADER)
    load_benches()
    assert "penstock_benches.paper.numbers" not in sys.modules


def test_a_bench_with_a_usual_number_of_repeats_does_as_many_as_it_is_asked_for() -> None:
    assert [BenchRun().times(3), BenchRun(quick=True).times(3), BenchRun(repeats=10).times(3)] == [3, 1, 10]
    assert BenchRun(quick=True, repeats=2).times(3) == 2
