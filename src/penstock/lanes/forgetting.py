"""Forgets readers that will not come back, and removes their plan journals with the progress of their lanes.

A journal stays while the reader's planner lives, while the stream is being backfilled, and while the reader's
lane needs it. The registry is changed first, then the journal goes, then the progress. After a crash in
between, the same call removes what is left.
"""

from __future__ import annotations

from contextlib import closing

from penstock.grants.journal import JournalOwnedError, JournalWriter
from penstock.lanes.progress import LaneStore
from penstock.streams.protocol import StreamLog, StreamState
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError


def is_known(state: StreamState, reader: str) -> bool:
    """Whether a stream has something to forget of a reader: its progress, its journal or its lane."""
    return (state.folder("readers") / f"{reader}.json").exists() or _is_left(state, reader)


def retire_reader(log: StreamLog, reader: str, wait_s: float | None) -> bool:
    """Retires a reader once its planner has ended, because a running planner would register it again.

    The journal is removed, too, unless rows of the reader's shed lane are pinned. If somebody has forgotten
    the reader before, `forget_reader` has promised the rest of the lane, pinned or not.

    Args:
        log: The stream.
        reader: The reader's id.
        wait_s: How long to wait for the planner to end; by default as long as a planner waits for another.

    Returns:
        Whether nothing is left to do. If the planner lives, nothing was done. If the stream is being
        backfilled, or the lane needs the journal although nothing is pinned, the reader is retired, and its
        journal is left to another call.
    """
    try:
        owned = JournalWriter(log.state.folder("plans"), reader, wait_s)
    except JournalOwnedError:
        return False
    with closing(owned):
        store = LaneStore(log.ref, reader)
        was_forgotten = store.registered() is None
        ReaderRegistry(log).retire(reader)
        with store.held_now() as held:
            if not held:
                return False
            if store.registered() is not None:
                return True  # its lane is pinned
            if _why_needed(store) if was_forgotten else store.needed().pending:
                return False
            store.remove(owned)
            return True


def forget_reader(log: StreamLog, reader: str) -> str:
    """Forgets a reader with its pins; says why its journal stays, or nothing if there is no journal any more.

    A reader that was forgotten while its journal had to stay can be forgotten again.
    """
    try:
        ReaderRegistry(log).forget(reader)
    except UnknownNameError:
        if not _is_left(log.state, reader):
            raise
    if not _is_left(log.state, reader):
        return ""
    try:
        owned = JournalWriter(log.state.folder("plans"), reader, 0.0)
    except JournalOwnedError:
        return "its query still runs, and registers the reader again"
    except InvalidInputError as error:
        return f"it cannot be read: {error}"
    store = LaneStore(log.ref, reader)
    with closing(owned), store.held_now() as held:
        reason = _why_needed(store) if held else "the stream is being backfilled"
        if not reason:
            store.remove(owned)
        return reason


def remove_backfilled(store: LaneStore) -> bool:
    """Removes the journal of a reader that will not come back, once its lane is backfilled or trimmed.

    The lock of the stream's backfills is held. A journal that somebody owns stays: nobody waits for a lock.

    Returns:
        Whether there is no journal any more.
    """
    if not store.has_journal:
        return True
    if not _is_over(store):
        return False
    try:
        owned = JournalWriter(store.plans, store.reader, 0.0)
    except JournalOwnedError:
        return False
    with closing(owned):
        if not _is_over(store) or _why_needed(store):  # looked at again: its planner may have begun and ended
            return False
        ReaderRegistry(store.log).retire(store.reader)
        store.remove(owned)
        return True


def _is_over(store: LaneStore) -> bool:
    """Whether a reader will not come back, and nothing is pinned for it."""
    reader = store.registered()
    return reader is None or (reader.ended and not reader.pinned)


def _why_needed(store: LaneStore) -> str:
    """Why a lane needs its journal; empty if the lane has no row that a backfill can read."""
    try:
        journal = store.journal()
        if not journal.entries and not journal.torn:
            return ""  # the journal is gone, and the progress of its lane was left
        lane = store.lane(ended=True, journal=journal)
    except PenstockError as error:
        return f"its lane cannot be read: {error}"
    waiting = lane.rows - lane.gone - lane.lost
    if waiting:
        return (
            f"{waiting} rows that it shed are still in the log, and can be backfilled until they are trimmed"
        )
    return "a backfill of it was begun and is not finished" if store.needed().pending else ""


def _is_left(state: StreamState, reader: str) -> bool:
    """Whether a reader has a journal, or a lane with progress."""
    plans, lanes = state.folder("plans"), state.folder("lanes")
    return (plans / f"{reader}.jsonl").exists() or (lanes / f"{reader}.json").exists()
