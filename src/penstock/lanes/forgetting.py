"""Forgets readers that will not come back, and removes their plan journals.

A journal stays while the reader's planner lives, while the stream is being backfilled, and while the reader's
lane needs it. The registry is changed before the journal goes. After a crash in between, the same call
removes the journal.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from penstock.grants.journal import JournalWriter
from penstock.lanes.progress import LaneStore
from penstock.streams.protocol import StreamLog, StreamState
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError


def is_known(state: StreamState, reader: str) -> bool:
    """Whether a stream has something to forget of a reader: its progress, or its journal."""
    progress, journal = state.folder("readers") / f"{reader}.json", _journal(state, reader)
    return progress.exists() or journal.exists()


def retire_reader(log: StreamLog, reader: str, wait_s: float | None) -> bool:
    """Retires a reader once its planner has ended, because a running planner would register it again.

    The journal is removed, too, unless rows of the reader's shed lane are pinned.

    Args:
        log: The stream.
        reader: The reader's id.
        wait_s: How long to wait for the planner to end; by default as long as a planner waits for another.

    Returns:
        Whether nothing is left to do. If the planner lives, nothing was done. If the stream is being
        backfilled, the reader is retired, and its journal is left to another call.
    """
    try:
        owned = JournalWriter(log.state.folder("plans"), reader, wait_s)
    except InvalidInputError:
        return False
    with closing(owned):
        store = LaneStore(log.ref, reader)
        ReaderRegistry(log).retire(reader)
        with store.held_now() as held:
            if not held:
                return False
            if store.registered() is None and not store.needed().pending:
                owned.remove()
            return True


def forget_reader(log: StreamLog, reader: str) -> str:
    """Forgets a reader with its pins; says why its journal stays, or nothing if there is no journal any more.

    A reader that was forgotten while its journal had to stay can be forgotten again.
    """
    try:
        ReaderRegistry(log).forget(reader)
    except UnknownNameError:
        if not _journal(log.state, reader).exists():
            raise
    if not _journal(log.state, reader).exists():
        return ""
    try:
        owned = JournalWriter(log.state.folder("plans"), reader, 0.0)
    except InvalidInputError:
        return "its query still runs, and registers the reader again"
    store = LaneStore(log.ref, reader)
    with closing(owned), store.held_now() as held:
        reason = _why_needed(store) if held else "the stream is being backfilled"
        if not reason:
            owned.remove()
        return reason


def _why_needed(store: LaneStore) -> str:
    """Why a lane needs its journal; empty if the lane has no row that a backfill can read."""
    try:
        lane = store.lane(ended=True)
    except PenstockError as error:
        return f"its lane cannot be read: {error}"
    waiting = lane.rows - lane.gone - lane.lost
    if waiting:
        return (
            f"{waiting} rows that it shed are still in the log, and can be backfilled until they are trimmed"
        )
    return "a backfill of it was begun and is not finished" if store.needed().pending else ""


def _journal(state: StreamState, reader: str) -> Path:
    return state.folder("plans") / f"{reader}.jsonl"
