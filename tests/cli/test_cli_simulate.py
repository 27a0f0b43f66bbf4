import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock import __version__
from penstock.cli import main
from penstock.policies.load import LOAD_MANAGERS
from penstock.record.reading import read_run
from penstock.sim.workloads import arrivals as workloads

Run = Callable[..., tuple[int, str, str]]

CLOSED_LOOP = [name for name in LOAD_MANAGERS if name != "aurora"]
SHORT = ("--workload", "constant", "--overload", "1.5", "--duration", "5s")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; gives exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def bursts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace nobody has seen: stamped with the time of day, bursty, gzipped."""
    path = tmp_path_factory.mktemp("trace") / "bursts.txt.gz"
    times_s = workloads.self_similar(duration_s=200, peak_per_s=None, seed=5).times_s + 36_000.25
    path.write_bytes(gzip.compress("\n".join(f"{time:.6f}" for time in times_s).encode()))
    return path


# -- results --------------------------------------------------------------------------------------


@pytest.mark.long
def test_all_six_managers_on_an_unseen_trace(run: Run, bursts: Path, tmp_path: Path) -> None:
    code, out, _ = run(
        "simulate", "--trace", bursts, "--overload", 1.5, "--manager", "all", "--json", tmp_path / "r.json"
    )
    assert code == 0
    results = {result["manager"]: result for result in json.loads((tmp_path / "r.json").read_text())}
    assert list(results) == list(LOAD_MANAGERS)
    assert all(name in out for name in LOAD_MANAGERS)
    for result in results.values():
        assert result["offered"] == result["admitted"] + result["shed"] + result["waiting"]
        assert result["loss_fraction"] == pytest.approx(1 / 3, abs=0.05)
    for name in CLOSED_LOOP:
        assert results[name]["violation_avg_s"] < results["aurora"]["violation_avg_s"], name


def test_one_manager_is_one_object_on_standard_output_and_the_table_is_not_in_its_way(run: Run) -> None:
    code, out, err = run("simulate", *SHORT, "--manager", "ctrl", "--json", "-")
    assert code == 0
    assert json.loads(out)["manager"] == "ctrl"
    assert "violation avg" in err
    assert "offered" in err


def test_options_override_the_scenario_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "manager: ctrl\ndelay_target: 3s\nworkload: {kind: constant, overload: 1.2}\nduration: 5s\n"
    )
    _, out, _ = run(
        "simulate", path, "--manager", "aloma", "--delay-target", "500ms", "--seed", 7, "--json", "-"
    )
    result = json.loads(out)
    assert (result["manager"], result["delay_target_s"], result["seed"]) == ("aloma", 0.5, 7)
    assert result["duration_s"] == 5.0


def test_a_dry_run_sheds_nothing(run: Run) -> None:
    _, out, _ = run("simulate", *SHORT, "--dry-run", "--json", "-")
    result = json.loads(out)
    assert (result["dry_run"], result["shed"]) == (True, 0)


def test_a_recorded_run_replays_identically(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run("simulate", *SHORT, "--manager", "seamless", "--run-dir", folder)[0] == 0
    recorded = read_run(folder)
    assert recorded.config["manager"] == "seamless"
    assert len(recorded.decisions) == 10
    code, out, _ = run("replay", folder)
    assert code == 0
    assert "identical" in out


def test_every_manager_gets_a_run_directory_of_its_own(run: Run, tmp_path: Path) -> None:
    assert run("simulate", *SHORT, "--manager", "all", "--run-dir", tmp_path / "runs")[0] == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(LOAD_MANAGERS)


def test_a_plot_is_written_and_not_overwritten_unless_forced(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    assert run("simulate", *SHORT, "--plot", path)[0] == 0
    before = path.read_bytes()
    assert before.startswith(b"\x89PNG")
    code, _, err = run("simulate", *SHORT, "--plot", path)
    assert code == 2
    assert "an existing file is not overwritten" in err
    assert "--force" in err
    assert path.read_bytes() == before
    assert run("simulate", *SHORT, "--plot", path, "--force")[0] == 0


# -- bad input: one line, exit code 2, no traceback -------------------------------------------------


def refused(run: Run, *arguments: object) -> str:
    """The one line that a command is refused with."""
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("penstock: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "a trace must hold at least one arrival", id="empty"),
        pytest.param(b"# only a comment\n\n", "a trace must hold at least one arrival", id="only_a_comment"),
        pytest.param(b"second,count\n", "a trace must hold at least one arrival", id="only_a_header"),
        pytest.param(b"1\n3\n2\n", "arrival times must be sorted; got: '2' in", id="unsorted_times"),
        pytest.param(b"9\n3\n", "arrival times must be sorted; got: '3' in", id="unsorted_below_the_first"),
        pytest.param(b"5,1\n4,1\n", "seconds must be sorted", id="unsorted_seconds"),
        pytest.param(b"-1\n2\n", "times must not be negative; got: '-1' in", id="negative_time"),
        pytest.param(b"1\nnan\n", "an arrival time must be a finite number; got: 'nan'", id="nan_time"),
        pytest.param(b"nan\n", "an arrival time must be a finite number; got: 'nan'", id="nan_first"),
        pytest.param(b"1\ninf\n", "an arrival time must be a finite number", id="infinite_time"),
        pytest.param(b"0,5\n1,-3\n", "a count must be a whole number, 0 or more", id="negative_count"),
        pytest.param(b"0,5\n1,nan\n", "a count must be a finite number", id="nan_count"),
        pytest.param(b"0,0\n1,0\n", "a trace must hold at least one arrival", id="nothing_but_zeros"),
        pytest.param(b"1\nsoon\n", "an arrival time must be a number; got: 'soon'", id="a_word"),
        pytest.param(bytes(range(256)) * 4, "; hint: ", id="binary_junk"),
        pytest.param(b"\x1f\x8bjunk", "a gzipped trace must be whole", id="broken_gzip"),
    ],
)
def test_a_bad_trace_is_refused(run: Run, tmp_path: Path, content: bytes, message: str) -> None:
    trace = tmp_path / "t.csv"
    trace.write_bytes(content)
    error = refused(run, "simulate", "--trace", trace, "--overload", 1.5)
    assert message in error
    assert "; got: " in error
    assert "; hint: " in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--manager", "dedline"), "got: 'dedline'; hint: did you mean 'deadline'?"),
        (("--manager", "Ctrl"), "did you mean 'ctrl'?"),
        (("--network", "flatt"), "did you mean 'flat'?"),
        (("--workload", "sinusoidal"), "did you mean 'sinusoid'?"),
        (("--workload", "trace"), "workload.path is required"),
        (("--delay-target", "1ms"), "longer than one row takes through QN-flat, 4.74ms; got: 1ms"),
        (("--delay-target", "soon"), "delay_target must be a number with a unit; got: 'soon'"),
        (("--delay-target=-2s",), "delay_target must be a positive number of seconds; got: '-2s'"),
        (("--delay-target", "nan"), "delay_target must be a number with a unit; got: 'nan'"),
        (("--overload", "nan"), "overload must be a positive number; got: nan"),
        (("--overload", "-1"), "overload must be a positive number; got: -1"),
        (("--overload", "inf"), "overload must be a positive number; got: inf"),
        (("--overload", "much"), "--overload"),
        (("--rate-scale", "0"), "rate_scale must be a positive number; got: 0"),
        (("--rate-scale", "1e12"), "the number of arrivals must not exceed"),
        (("--time-scale", "nan"), "time_scale must be a positive number; got: nan"),
        (("--rate-scale", "2", "--overload", "2"), "by rate_scale or by overload, not by both"),
        (("--headroom", "0"), "headroom must be a positive number; got: 0"),
        (("--headroom", "nan"), "headroom must be a positive number; got: nan"),
        (("--period", "0s"), "period must be a positive number of seconds"),
        (("--duration", "never"), "duration must be a number with a unit; got: 'never'"),
        (("--seed", "-1"), "seed must be a whole number, 0 or more; got: -1"),
        (("--seed", "x"), "--seed"),
        (("--trace", "none.csv"), "the trace file must exist; got: 'none.csv'"),
        (("--trace", "."), "a trace must be a file"),
        (("--trace", "a.csv", "--workload", "s_c"), "a --trace or a --workload, not both"),
        (("none.yaml",), "the scenario file must exist; got: 'none.yaml'"),
        (("--colour", "red"), "--colour"),
        (("--json", "."), "an output is a file"),
    ],
)
def test_a_bad_option_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(run, "simulate", *arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            "delay_targt: 2s\n", "got: 'delay_targt'; hint: did you mean 'delay_target'?", id="unknown_key"
        ),
        pytest.param(
            "workload: {kind: s_c, seed: 1}\n", "s.yaml, workload must be one of", id="misplaced_key"
        ),
        pytest.param("- manager\n", "must be a mapping of keys to values", id="a_list"),
        pytest.param("manager: [ctrl\n", "a scenario file must be YAML", id="broken_yaml"),
        pytest.param("\x00\x01\x02", "a scenario file must be YAML", id="binary_junk"),
        pytest.param("manager: 3\n", "manager must be a text; got: 3", id="a_wrong_type"),
        pytest.param("manager: all\n", "manager must be one of", id="all_is_for_the_command_line"),
    ],
)
def test_a_bad_scenario_is_refused(run: Run, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(content)
    assert message in refused(run, "simulate", path)


def test_a_run_directory_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "never overwritten" in refused(run, "simulate", *SHORT, "--run-dir", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_line_break_in_a_file_name_stays_inside_one_line(run: Run) -> None:
    refused(run, "simulate", "two\nlines.yaml")


# -- the command itself ---------------------------------------------------------------------------


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == (0, f"penstock {__version__}\n", "")


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    for command in ("demo", "simulate", "replay", "calibrate", "bench"):
        assert command in out


def test_an_unknown_command_is_refused_with_the_nearest(run: Run) -> None:
    assert "simulate" in refused(run, "simulat")


def test_help_teaches_by_examples(run: Run) -> None:
    code, out, _ = run("simulate", "--help")
    assert code == 0
    assert "--overload 1.5" in out


def test_an_interrupt_exits_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.sim.simulate.simulate", interrupted)
    assert run("simulate", *SHORT)[0] == 130


# -- the demo -------------------------------------------------------------------------------------


def test_the_demo_compares_explains_and_leaves_its_run_behind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("penstock.cli.simulated.demo.SCENARIO", {"duration_s": 30.0})
    code, out, _ = run("demo", "--simulated", "--json", "demo.json")
    assert code == 0
    assert "verdict" in out
    assert "Without shedding nothing is lost" in out
    folder = tmp_path / "runs" / "demo-001"
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "report.json").read_text() == (tmp_path / "demo.json").read_text()
    results = {result["name"]: result for result in json.loads((tmp_path / "demo.json").read_text())}
    assert list(results) == ["no shedding", "aurora", "ctrl", "aloma", "deadline"]
    assert results["no shedding"]["shed"] == 0
    assert run("replay", folder / "deadline")[0] == 0
    assert run("demo", "--simulated")[0] == 0
    assert (tmp_path / "runs" / "demo-002").is_dir()


def test_the_demo_says_where_it_cannot_write(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    code, _, err = run("demo", "--simulated", "--runs", tmp_path / "runs")
    assert code == 2
    assert err.count("\n") == 1


def test_the_numbers_of_a_trace_arrive_in_the_result(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "even.csv"
    trace.write_text("second,count\n" + "\n".join(f"{second},20" for second in range(10)))
    _, out, _ = run("simulate", "--trace", trace, "--json", "-")
    assert json.loads(out)["offered"] == 200
    _, out, _ = run("simulate", "--trace", trace, "--rate-scale", 3, "--time-scale", 0.5, "--json", "-")
    result = json.loads(out)
    assert (result["offered"], result["duration_s"]) == (600, 5.0)
    assert np.isclose(result["admitted"] + result["shed"] + result["waiting"], 600)
