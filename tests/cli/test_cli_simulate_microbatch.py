"""`penstock simulate --plant microbatch`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.sim.microbatch.scenario import load_microbatch

Run = Callable[..., tuple[int, str, str]]

PLANT = ("simulate", "--plant", "microbatch")
SHORT = (*PLANT, "--duration", "8s")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; gives exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


SMALL = """
plant: microbatch
duration: 6s
classes: {gold: {target: 2s}}
streams: {readings: {load: {kind: constant, rate_per_s: 1000}}}
queries: {alerts: {class: gold, streams: readings}}
"""


def test_the_table_and_the_json_have_the_same_books_for_each_class(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*SHORT, "--json", tmp_path / "r.json")
    assert code == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert list(result["classes"]) == ["gold", "silver", "bulk"]
    for name, found in result["classes"].items():
        books = [found[key] for key in ("offered", "admitted", "shed", "waiting")]
        assert books[0] == sum(books[1:])
        assert f"{name:<6}  offered {books[0]:,} = admitted {books[1]:,} + shed {books[2]:,}" in out
        assert found["offered"] == sum(query["offered"] for query in found["queries"].values())
    assert result["load"] == pytest.approx(2.0)
    assert sum(found["share"] for found in result["classes"].values()) == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_result_and_another_seed_another(run: Run) -> None:
    results = [json.loads(run(*SHORT, "--seed", seed, "--json", "-")[1]) for seed in (3, 3, 4)]
    assert results[0] == results[1]
    assert results[0]["classes"] != results[2]["classes"]


def test_a_file_names_its_plant_and_options_override_it(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "s.yaml", SMALL)
    _, out, _ = run(
        *("simulate", path, "--manager", "ctrl", "--delay-target", "3s", "--row-cost", "1ms"),
        *("--fixed-cost", "100ms", "--noise", "0", "--slots", "2", "--seed", "5", "--json", "-"),
        *("--set", "streams.readings.load.rate_per_s=3000"),
    )
    result = json.loads(out)
    (gold,) = result["classes"].values()
    assert (gold["manager"], gold["target_s"], result["slots"], result["seed"]) == ("ctrl", 3.0, 2, 5)
    assert gold["offered"] == pytest.approx(18_000, rel=0.02)
    assert result["load"] == pytest.approx((3000 * 0.001 + 0.1 / 1.5) / 2)


def test_a_dry_run_decides_but_sheds_nothing(run: Run) -> None:
    result = json.loads(run(*SHORT, "--dry-run", "--json", "-")[1])
    assert result["shed"] == 0
    assert result["waiting"] > 0


def test_streams_may_play_a_trace_in_partitions_with_keys_and_clocks_that_differ(
    run: Run, tmp_path: Path
) -> None:
    trace = write(tmp_path / "arrivals.csv", "".join(f"{second},{500 * second}\n" for second in range(6)))
    path = write(
        tmp_path / "s.yaml",
        """
plant: microbatch
duration: 8s
classes: {gold: {target: 2s, shed: key}}
streams:
  a: {load: {kind: trace, path: arrivals.csv, rate_scale: 2}, partitions: 2, key: true}
  b: {load: {kind: constant, rate_per_s: 0}, key: true}
  c: {load: {kind: step, levels: [{from: 2s, rate_per_s: 100}]}, key: true, ahead: 0.3}
queries:
  both: {class: gold, streams: [a, b, c]}
  one: {class: gold, streams: a}
""",
    )
    code, out, err = run("simulate", path, "--json", "-")
    assert code == 0, err
    queries = json.loads(out)["classes"]["gold"]["queries"]
    assert queries["one"]["offered"] == pytest.approx(2 * 500 * 15, abs=2)
    assert queries["both"]["offered"] == pytest.approx(2 * 500 * 15 + 600, rel=0.02)
    played = json.loads(run("simulate", path, "--trace", trace, "--json", "-")[1])
    assert played["classes"]["gold"]["queries"]["one"]["offered"] == pytest.approx(7500, abs=2)


def test_a_run_that_is_recorded_can_be_replayed(run: Run, tmp_path: Path) -> None:
    code, _, _ = run(*SHORT, "--run-dir", tmp_path / "run")
    assert code == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["kind"], list(report["classes"])) == ("microbatch", ["gold", "silver", "bulk"])
    code, out, _ = run("replay", tmp_path / "run", "--json", "-")
    assert code == 0
    replayed = json.loads(out)
    assert replayed["decisions"] == replayed["identical"] > 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--plant", "spark"), "--plant must be one of engine, microbatch"),
        (("--slots", "2"), "--slots is for the plant microbatch"),
        ((*PLANT[1:], "--network", "flat"), "--network is for the plant engine"),
        ((*PLANT[1:], "--manager", "all"), "a class of the plant microbatch has one manager"),
        ((*PLANT[1:], "--manager", "contrl"), "did you mean 'ctrl'"),
        ((*PLANT[1:], "--overload", "0.1"), "an overload is more than the fixed costs, 0.24"),
        ((*PLANT[1:], "--set", "queries.alerts.class=gld"), "did you mean 'gold'"),
        ((*PLANT[1:], "--set", "queries.alerts.streams=reading"), "did you mean 'readings'"),
        ((*PLANT[1:], "--set", "queries.alerts.streams=[logs, logs]"), "must name a stream once"),
        ((*PLANT[1:], "--set", "streams.logs.load.kind=bursts"), "did you mean 'burst'"),
        ((*PLANT[1:], "--set", "rate_scale=2"), "overload must be given without rate_scale"),
        (
            (*PLANT[1:], "--set", "streams.logs.load={kind: step, levels: [{from: 2s, rate_per_s: 1}, "
             "{from: 1s, rate_per_s: 1}]}"),
            "must be in order of time",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_do(run: Run, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = run("simulate", *arguments)
    assert code != 0
    assert says in err
    assert "hint" in err


def test_a_scale_replaces_an_overload_and_the_other_way_round(run: Run) -> None:
    scaled, plain = (
        json.loads(run(*SHORT, "--rate-scale", scale, "--json", "-")[1])["offered"] for scale in (0.5, 1)
    )
    assert plain == pytest.approx(2 * scaled, rel=0.01)
    assert load_microbatch(None, {"overload": None, "rate_scale": 2.0}).scale() == 2.0
