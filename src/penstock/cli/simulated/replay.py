"""`penstock replay`: a recorded run through its own or another load manager."""

from __future__ import annotations

from collections.abc import Mapping
from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.outputs import STDOUT, claim_output, write_json
from penstock.policies.load import Manager
from penstock.record.layout import dump_json, encode_decision
from penstock.record.reading import RecordedRun, read_run
from penstock.record.replay import ReplayResult, rebuild_managers, replay, shed_summary


def replay_command(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    manager: Annotated[
        str | None, typer.Option(help="Another manager, with its defaults; without it the recorded one.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(help="Write the comparison as JSON; - for standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Replay a recorded run and compare the decisions.

    Without --manager the run must replay identically; the exit code is 1 if it does not.

    Another manager sees the recorded observations, not the consequences of its own decisions.
    """
    claim_output(json, force)
    recorded = read_run(run)
    classes = list(dict.fromkeys(observation.cls for observation in recorded.observations))
    classes = classes or list(recorded.config.get("classes", [""]))  # a run without observations
    managers = rebuild_managers(recorded.config, classes, manager, recorded.managers)
    result = replay(recorded, managers, exchange=manager is None)
    before, after = _names(recorded, managers)
    summary = _summary(result)
    console = Console(stderr=json == STDOUT)
    names = f"{before} -> {after}"
    table = Table(title=escape(f"{run.name}: {names}"), show_header=False)
    for name, value in summary.items():
        table.add_row(name.replace("_", " "), _cell(value))
    console.print(table)
    shed = shed_summary(recorded)
    if shed:
        console.print(_shed_table(shed))
    if recorded.dropped:
        console.print(_beginning(recorded))
    if recorded.truncated:
        console.print("The recording was cut off; what is whole was replayed.")
    gives_grants = any(chosen.traits.gives_grants for chosen in managers.values())
    if gives_grants and not any(seen.waiting.rows.size for seen in recorded.observations):
        console.print(f"{after} plans by the age of waiting rows, which this run does not show it.")
    if result.first_difference is not None:
        difference = result.first_difference
        console.print(f"First difference, observation {difference.observation_id}:")
        for name, decision in (("recorded", difference.recorded), ("replayed", difference.replayed)):
            console.print(escape(f"  {name}: keep {decision.keep_fraction:.4f}, {decision.reason}"))
    if json is not None:
        details: dict[str, Any] = {"run": str(run), "recorded_manager": before}
        details |= {"replayed_manager": after, "truncated": recorded.truncated, "shedding": shed}
        details |= {"dropped_parts": recorded.dropped}
        write_json(json, loads(dump_json(details | summary | _first_difference(result))))
    if manager is None and result.identical < result.total:
        raise typer.Exit(1)


def _names(recorded: RecordedRun, managers: Mapping[str, Manager[Any, Any]]) -> tuple[str, str]:
    """Names of the run's managers and of the replay's managers, each name once."""
    known = recorded.config.get("classes", {})
    before = [str(known.get(cls, recorded.config).get("manager", "unknown")) for cls in managers]
    after = [chosen.name for chosen in managers.values()]
    return ", ".join(dict.fromkeys(before)) or "unknown", ", ".join(dict.fromkeys(after)) or "unknown"


def _beginning(recorded: RecordedRun) -> str:
    """A sentence on what is missing of a record that had a limit."""
    parts = "part was" if recorded.dropped == 1 else f"{recorded.dropped} parts were"
    since = ""
    if recorded.observations:
        first = recorded.observations[0]
        since = f", from observation {first.id} of class {first.cls} on"
    return f"The first {parts} dropped, as the record has a limit; what is left was replayed{since}."


def _shed_table(shed: list[dict[str, Any]]) -> Table:
    """A table of decisions of class shedders, which are shown as recorded, not replayed."""
    table = Table("class", "query", "shedder", "decisions", "kept", "shed", "last reason", title="shedders")
    for line in shed:
        names = (escape(str(line[key])) for key in ("cls", "query", "shedder"))
        counts = (f"{line[key]:,}" for key in ("decisions", "kept", "shed"))
        table.add_row(*names, *counts, escape(line["last_reason"]))
    return table


def _summary(result: ReplayResult) -> dict[str, Any]:
    return {
        "decisions": result.total,
        "identical": result.identical,
        "different": result.total - result.identical,
        "mean_keep_recorded": result.mean_keep_recorded,
        "mean_keep_replayed": result.mean_keep_replayed,
        "mean_keep_difference": result.mean_keep_difference,
        "max_keep_difference": result.max_keep_difference,
    }


def _first_difference(result: ReplayResult) -> dict[str, Any]:
    first = result.first_difference
    if first is None:
        return {"first_difference": None}
    both = {"recorded": encode_decision(first.recorded), "replayed": encode_decision(first.replayed)}
    return {"first_difference": {"observation_id": first.observation_id, **both}}


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
