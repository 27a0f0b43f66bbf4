"""`penstock control`: a control plane that several drivers share, and a look at one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.outputs import STDOUT, claim_output, write_json
from penstock.config import load_flow_config
from penstock.errors import InvalidInputError

control_app = typer.Typer(
    help="Serve a control plane that several drivers share; look at one that runs.", no_args_is_help=True
)


@control_app.command("serve")
def serve_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The flow's YAML file: classes, log.")],
    address: Annotated[
        str | None, typer.Option(help="unix:///path to listen at; the file's `address` if not given.")
    ] = None,
) -> None:
    """Serve a control plane until Ctrl-C or SIGTERM, for all drivers whose flow has its address.

    Their queries share the slots, classes and targets of this file. A driver's own classes must be among
    them.
    """
    from penstock.control.server import ControlServer, run_control

    flow = load_flow_config(config)
    address = address or flow.address
    if address is None:
        raise InvalidInputError(
            "a shared control plane has an address", f"none in {config}", "give --address unix:///path"
        )
    flow = load_flow_config({**flow.model_dump(by_alias=True), "address": address})
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


@control_app.command("status")
def status_command(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="unix:///path, as in flow.address.")],
    json: Annotated[str | None, typer.Option(help="Write the same as JSON; - for standard output.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Show every class of a running control plane: rows, delays against targets, shares, reasons."""
    from penstock.control.client import ControlClient
    from penstock.spark.report import live_table

    claim_output(json, force)
    client = ControlClient(address)
    try:
        status = client.request({"op": "status"})["status"]
    finally:
        client.close()
    Console(stderr=json == STDOUT).print(live_table(status, f"control plane at {address}"))
    if json is not None:
        write_json(json, status)
