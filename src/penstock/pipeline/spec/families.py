"""A family whose file of CQL may be changed while it runs: queries of its shape join and leave the family."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.cql.analysis.families import Family
from penstock.cql.errors import CqlError
from penstock.pipeline.spec.pipeline import PipelineConfig


class LiveFamily:
    """Watches a family's file for changes.

    Args:
        config: The pipeline.
        query: The key of `queries` that has a `cql_file`.
        family: The family when it started.
        publish: Called with the family whenever its queries have changed.

    Attributes:
        family: The family as it is now.
    """

    def __init__(
        self, config: PipelineConfig, query: str, family: Family, publish: Callable[[Family], None]
    ) -> None:
        self._config, self._query, self.family, self._publish = config, query, family, publish
        self._file = Path(config.queries[query].cql_file or "")
        self._seen = self._stamp()

    def look(self) -> str | None:
        """A line for people about a change of the file since the last look; `None` if there was no change.

        A text that cannot be taken over changes nothing: all queries go on.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            return f"{self._query}: {self._take_over()}"
        except CqlError as error:
            return f"{self._query}: {self._file.name} is not taken over, all queries go on: {error}"

    def _take_over(self) -> str:
        after = self._config.continuous(self._query).family
        if after is None or after.shape != self.family.shape:
            raise CqlError(
                "a family that runs takes queries with names that differ from it in constants alone",
                "others",
                "write 2.0 beside 2.5, give others a key of `queries`, or start the pipeline again",
            )
        before = self.family.members
        other = [name for name, values in after.members.items() if before.get(name, values) != values]
        if other:
            raise CqlError(
                "a query with another constant is another query, with a name of its own",
                _listed(other),
                "give it a new name: its open windows have rows of the old one",
            )
        joined = [name for name in after.members if name not in before]
        left = [name for name in before if name not in after.members]
        if not joined and not left:
            return "its file was changed, its queries are the same"
        self._publish(after)
        self.family = after
        parts = [f"{_listed(joined)} joined"] * bool(joined) + [f"{_listed(left)} left"] * bool(left)
        return f"{', '.join(parts)}; {len(after.members)} queries from the next micro-batch on"

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
