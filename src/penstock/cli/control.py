"""`penstock control`: serves a control plane that several drivers share, shows a running one, changes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.cli.outputs import STDOUT, claim_output, write_json
from penstock.cli.run import changes_of
from penstock.config.flow import FlowConfig, load_flow_config
from penstock.config.mistakes import read_mapping
from penstock.config.old_shedding import old_keys, say_old
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.status import Status

control_app = typer.Typer(
    help="Serve a control plane that several drivers share; look at one that runs, and change it.",
    no_args_is_help=True,
)

Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="unix:///path, as `penstock run` prints it or flow.address.")
]


@control_app.command("serve")
def serve_command(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="The YAML file of a flow (classes, log) or of a pipeline."),
    ],
    address: Annotated[
        str | None, typer.Option(help="unix:///path to listen at; the file's `address` if not given.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Record decisions in this new directory.",
            show_default="`run` of a flow's file; `run` of a pipeline's file is for `penstock run`",
        ),
    ] = None,
) -> None:
    """Serve a control plane until Ctrl-C or SIGTERM, for all drivers whose flow has its address.

    Their queries share the slots, classes and targets of this file. A driver's own classes must be among
    them.
    """
    from penstock.host.process import run_control
    from penstock.host.server import ControlServer

    flow = _flow_of(config)
    if run is not None:
        flow = flow.model_copy(update={"run": run.absolute()})
    address = address or flow.address
    if address is None:
        raise InvalidInputError(
            "a shared control plane has an address", f"none in {config}", "give --address unix:///path"
        )
    keys = {name: getattr(flow, name) for name in FlowConfig.model_fields}
    flow = load_flow_config({**keys, "address": address})
    if ControlServer.answers(address):
        raise InvalidInputError("an address has one control plane", address, "stop the other one first")
    start = {
        "address": address,
        "config": flow.to_json(),
        "run": None if flow.run is None else str(flow.run),
        "record": {"kind": "spark", "flow": flow.model_dump(mode="json", by_alias=True)},
    }
    print(f"serving classes {', '.join(flow.classes)} at {address}", flush=True)
    run_control(start)
    print("stopped", flush=True)


def _flow_of(file: Path) -> FlowConfig:
    """The configuration of a control plane in a flow's file, or in a pipeline's, which also has queries."""
    if "queries" not in read_mapping(file, "flow", "examples/pipelines"):
        return load_flow_config(file)
    from penstock.pipeline.spec.load import load_pipeline

    # a run directory must be new: `penstock run` would refuse it if this control plane had used it
    return load_pipeline(file).flow_config().model_copy(update={"run": None})


@control_app.command("status")
def status_command(
    address: Address,
    json: Annotated[str | None, typer.Option(help="Write the same as JSON; - for standard output.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Show a running control plane: for classes rows, delays against targets, shares and reasons; for queries
    their SIC, and which of their streams are silent."""
    from penstock.show.report import live_table, query_report, query_table

    claim_output(json, force)
    status = Status.from_json(_request(address, {"op": "status"})["status"])
    console = Console(stderr=json == STDOUT)
    console.print(live_table(status, f"control plane at {address}"))
    if queries := query_report(status):
        console.print(query_table(queries))
    if json is not None:
        write_json(json, status.to_json())


@control_app.command("change")
def change_command(
    address: Address,
    cls: Annotated[str, typer.Argument(metavar="CLASS", help="Which class.")],
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="target=3s, priority=8, shed=key, ...")
    ],
) -> None:
    """Change a class while its queries run: target, priority, manager and settings, shed, limits.

    Keys are those of a class in the file. Either all changes are made, or there is an error and none is.
    Changes made this way are gone when the control plane ends. A driver whose own control plane dies repeats
    only the changes that it made itself.
    """
    wanted = changes_of(changes)
    found = _request(address, {"op": "change", "cls": cls, "changes": wanted})
    floor = (
        "" if found["floor_s"] is None else f"; the least target it could meet is {found['floor_s']:.2f} s"
    )
    print(f"changed {cls}{floor}")
    if old := old_keys(wanted):
        now = FlowConfig.from_json(_request(address, {"op": "config"})["config"]).classes[cls]
        say_old(old, f"class {cls}: ", now.shed)


@control_app.command("shedding")
def shedding_command(
    address: Address, on: Annotated[str, typer.Argument(metavar="on|off", help="Whether rows are shed.")]
) -> None:
    """The kill switch. When off, no class sheds anything; turns and grant sizes stay."""
    if on not in ("on", "off"):
        raise UnknownNameError("switch", on, ("on", "off"))
    _request(address, {"op": "shedding", "on": on == "on"})
    print(f"shedding is {on}")


def _request(address: str, message: Mapping[str, Any]) -> dict[str, Any]:
    from penstock.host.client import ControlClient

    client = ControlClient(address)
    try:
        return client.request(message)
    finally:
        client.close()
