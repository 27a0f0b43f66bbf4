"""Finds where a plan journal can be cut: after the grants that neither a restart nor the shed lane needs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from penstock.grants.offset import Offset, Positions

_NUMBER = re.compile(rb'"grant":(\d+)')


@dataclass(frozen=True, slots=True)
class Needed:
    """The part of a reader's journal that must stay.

    Attributes:
        positions: By partition. A grant that ends after one of these positions stays.
        done: All grants up to this one are backfilled.
        done_offset: Offset of grant `done`, as the backfill knows it.
        pending: A backfill is under way: grants after `done` stay.
    """

    positions: Positions
    done: int = 0
    done_offset: Mapping[str, Any] | None = None
    pending: bool = False

    def may_go(self, offset: Offset) -> bool:
        """Whether nobody needs a grant any more."""
        if self.pending and offset.grant > self.done:
            return False
        return all(end <= self.positions.get(p, 0) for p, end in offset.end.items())


@dataclass(frozen=True, slots=True)
class Place:
    """A place to cut at: the last grant that goes, and where the line of the first kept grant begins."""

    last: Offset
    at: int


def find_cut(file: BinaryIO, needed: Needed, before: int, cut: int) -> Place | None:
    """The last place to cut a journal at; `None` if nothing may go.

    A journal may be long. Its grants are in order, so a binary search finds the place. Restoring an older
    checkpoint breaks the order. The place is safe all the same: a proposal voids earlier proposals of its own
    number and of higher numbers, and grants with lower numbers end earlier.

    Args:
        file: The journal.
        needed: Which grants must stay.
        before: Only grants before this one may go.
        cut: The last grant that was cut earlier; 0 for none.
    """
    low, high, found = 0, file.seek(0, os.SEEK_END), None
    while low < high:
        middle = (low + high) // 2
        line = _proposal_from(file, middle, high)
        if line is not None and line[1].grant < before and needed.may_go(line[1]):
            found, low = line, line[2]
        else:
            high = middle
    while found is not None:
        _, last, end = found
        following = _proposal_from(file, end, file.seek(0, os.SEEK_END))
        if following is None:
            return None
        if following[1].grant == last.grant + 1:
            place = Place(last, following[0])
            return place if _is_as_backfilled(file, place, needed, cut) else None
        # `last` was an orphan: its number was proposed again
        found = following if following[1].grant < before and needed.may_go(following[1]) else None
    return None


def _proposal_from(file: BinaryIO, first: int, end: int) -> tuple[int, Offset, int] | None:
    """The first proposal whose line begins in [first, end): begin of the line, offset, end of the line."""
    file.seek(max(0, first - 1))
    if first:
        file.readline()  # the rest of the line in which `first` lies
    while (at := file.tell()) < end:
        line = file.readline()
        if b'"proposed"' in line:
            try:
                return at, Offset.from_json(json.loads(line)["proposed"]), file.tell()
            except (ValueError, KeyError, TypeError):
                continue  # a crash left half a line
    return None


def _is_as_backfilled(file: BinaryIO, place: Place, needed: Needed, cut: int) -> bool:
    """Whether the last backfilled grant, if the cut would remove it, is the one that the backfill knows.

    After an older checkpoint was restored, another grant has its number. A lane command reports that, but
    only while the grant is in the journal.
    """
    if not cut < needed.done <= place.last.grant:
        return True
    file.seek(0)
    found: Mapping[str, Any] | None = None
    while file.tell() < place.at:
        line = file.readline()
        number = _NUMBER.search(line) if b'"proposed"' in line else None
        if number is not None and int(number[1]) <= needed.done:
            try:
                found = json.loads(line)["proposed"] if int(number[1]) == needed.done else None
            except ValueError:
                found = None
    return found == needed.done_offset
