"""`penstock log`: lists streams and readers, forgets readers and rows, serves streams."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.outputs import STDOUT, claim_output, write_json
from penstock.lanes.forgetting import forget_reader
from penstock.streams.opening import load_stream, streams_in
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, PenstockError

LOOK_EVERY_S = 0.5
"""Waits are this short because a signal right before an endless wait would not be noticed."""

log_app = typer.Typer(
    help="Look into a stream log: streams, readers; forget a reader, trim; serve it.", no_args_is_help=True
)

StreamArgument = Annotated[Path, typer.Argument(metavar="STREAM", help="A stream's directory.")]
JsonOption = Annotated[str | None, typer.Option(help="Write the same as JSON; - for standard output.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")]


@log_app.command("streams")
def streams_command(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="The directory that holds the streams.")],
    json: JsonOption = None,
    force: ForceOption = False,
) -> None:
    """List the streams of a log: partitions, rows kept, bytes on disk, readers."""
    claim_output(json, force)
    if not root.is_dir():
        raise InvalidInputError(
            "a log is a directory of streams", root, "give the directory that holds the streams"
        )
    found: list[dict[str, object]] = []
    for directory in streams_in(root):
        try:
            log = load_stream(directory)
        except PenstockError as error:  # one broken stream must not hide the others
            print(f"{directory.name}: {error}", file=sys.stderr)
            found.append({"stream": directory.name, "error": str(error)})
            continue
        found.append(
            {
                "stream": directory.name,
                "partitions": log.partitions,
                "dense": log.dense,
                "rows": sum(log.end(p) - log.start(p) for p in range(log.partitions)),
                "bytes": sum(file.stat().st_size for file in directory.rglob("*.data")),
                "readers": len(ReaderRegistry(log).readers()),
            }
        )
    _show(found, ("stream", "partitions", "rows", "bytes", "readers"), json)


@log_app.command("readers")
def readers_command(stream: StreamArgument, json: JsonOption = None, force: ForceOption = False) -> None:
    """List a stream's readers: how far each is, how far behind, and what it keeps from being trimmed."""
    claim_output(json, force)
    log = load_stream(stream)
    found: list[dict[str, object]] = [
        {
            "reader": reader.name,
            "partition": partition,
            "position": reader.positions.get(partition, 0),
            "behind": log.end(partition) - reader.positions.get(partition, 0),
            "keeps_from": reader.keeps_from(partition),
            "seen_s": reader.seen_s,
        }
        for reader in ReaderRegistry(log).readers()
        for partition in range(log.partitions)
    ]
    _show(found, ("reader", "partition", "position", "behind", "keeps_from", "seen_s"), json)


@log_app.command("forget")
def forget_command(
    stream: StreamArgument,
    reader: Annotated[str, typer.Argument(help="The reader's name, as in penstock log readers.")],
) -> None:
    """Forget a reader that will not come back; rows that only it needed go at the next trim.

    Its plan journal is removed, unless the query still runs or rows that it shed can still be backfilled.
    Forget the reader again later to remove the journal.
    """
    stays = forget_reader(load_stream(stream), reader)
    print(f"forgot {reader} of {stream.name}")
    if stays:
        print(f"its plan journal stays: {stays}")


@log_app.command("trim")
def trim_command(stream: StreamArgument, json: JsonOption = None, force: ForceOption = False) -> None:
    """Forget rows that every reader of a stream is past, in whole files.

    A control plane does so every ten seconds for the streams of its queries, if `trim` is on. A stream
    without registered readers keeps all rows.
    """
    claim_output(json, force)
    log = load_stream(stream)
    before = [log.start(p) for p in range(log.partitions)]
    left = ReaderRegistry(log).trim()
    found: list[dict[str, object]] = [
        {"partition": p, "trimmed": first - before[p], "first": first, "end": log.end(p)}
        for p, first in left.items()
    ]
    _show(found, ("partition", "trimmed", "first", "end"), json)


@log_app.command("serve")
def serve_command(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="The directory that holds the streams.")],
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token that callers must know; on this machine one is minted."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let every user of this machine append and read.")
    ] = False,
    fsync: Annotated[
        str, typer.Option(help="When appends reach the disk: always, interval or never.")
    ] = "never",
) -> None:
    """Serve the streams of a log over Arrow Flight, until Ctrl-C or SIGTERM."""
    from penstock.streams.flight.server import FlightServer

    token = None if token_file is None else token_file.read_text().strip()
    if token == "":
        raise InvalidInputError(
            "a token file holds a token", f"nothing in {token_file}", "write a token into it"
        )
    if no_token and token is not None:
        raise InvalidInputError("a log is served with a token or without", "both", "leave one of them out")
    stop = threading.Event()
    before = {kind: signal.signal(kind, lambda *_: stop.set()) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        server = FlightServer(root, host, port, token, fsync, not no_token)  # type: ignore[arg-type]
        print(f"serving {root} at {server.address}{_who_may_call(server.token_file, no_token)}", flush=True)
        while not stop.wait(LOOK_EVERY_S):
            pass
        ended = server.close()
        print("stopped", flush=True)
        if not ended:  # the streams are closed; only a call that its caller keeps open is left
            os._exit(0)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _who_may_call(token_file: Path | None, no_token: bool) -> str:
    if no_token:
        return ", to every user of this machine"
    return "" if token_file is None else f", token in {token_file}"


def _shown(value: object) -> object:
    return "" if value is None else value


def _show(found: list[dict[str, object]], columns: tuple[str, ...], json: str | None) -> None:
    table = Table(*columns)
    for row in found:
        table.add_row(*(str(_shown(row.get(column, "?"))) for column in columns))
    Console(stderr=json == STDOUT).print(table if found else "none")
    if json is not None:
        write_json(json, found)
