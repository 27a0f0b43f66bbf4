"""What crosses the edge between sources and the control plane, as a list of events in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a source said or heard.

    Attributes:
        at_s: On the cluster's timer.
        kind: joined, asked, granted, nothing (a question was answered so), proposed (the offset that the
            source made of a grant), planned, held (a planned batch may not start yet), finished, last_stage,
            left.
        reader: The source's reader.
        data: What was said: the offset's JSON, or the answer's.
    """

    at_s: float
    kind: str
    reader: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"at_s": round(self.at_s, 9), "kind": self.kind, "reader": self.reader, **self.data}


Observer = Callable[[Event], None]


class Recording(list[Event]):
    """An observer that keeps all events: `cluster.observers.append(recording := Recording())`."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, *kinds: str, reader: str | None = None) -> list[Event]:
        """The events of some kinds, of one reader or of all."""
        return [e for e in self if e.kind in kinds and reader in (None, e.reader)]

    def lines(self) -> str:
        """One JSON line an event: the form of a golden trace."""
        return "".join(json.dumps(event.to_json(), sort_keys=True) + "\n" for event in self)
