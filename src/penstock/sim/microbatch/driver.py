"""The driver of a virtual cluster: what it tells the control plane of its queries, tasks and cores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from penstock.control.core import events as ev
from penstock.sim.microbatch.machine import Cores
from penstock.sim.microbatch.query import SimulatedQuery
from penstock.streams.protocol import StreamIndex
from penstock.vocabulary.moment import Moment


class SimulatedDriver(ABC):
    """What a driver says. A control plane that is silent, or new, hears it later or never.

    Args:
        cores: On which tasks run.
        tells_cores: Whether the driver says how many cores there are, and what tasks take.
    """

    silent: bool
    queries: dict[str, SimulatedQuery]

    def __init__(self, cores: Cores, tells_cores: bool) -> None:
        self.cores, self.tells_cores = cores, tells_cores
        self._shared: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._windowed: set[str] = set()
        if tells_cores:
            self.resize(cores.count)

    @abstractmethod
    def at(self) -> Moment:
        """Now."""

    @abstractmethod
    def handle(self, event: ev.Event) -> None:
        """The control plane is told of an event."""

    @abstractmethod
    def tell(self, kind: str, reader: str) -> None:
        """Observers are told of something."""

    def command(self, command: ev.Command) -> None:
        """A driver, or a user, wants something."""
        self.handle(ev.Commanded(self.at(), command))

    def _tokens(self, query: SimulatedQuery) -> frozenset[str]:
        return frozenset(line.joining.token for line in query.lines.values())

    def drain(self, query: SimulatedQuery, on: bool = True) -> None:
        """The query's grants shed nothing, as `flow.drain` has it."""
        self.command(ev.Drain(self._tokens(query), on))

    def refuse(self, query: SimulatedQuery, on: bool = True) -> None:
        """The query gets no more grants, as before it is stopped through the gate."""
        self.command(ev.Refuse(self._tokens(query), on))

    def share(self, log: StreamIndex, cls: str, tokens: Iterable[str] = ()) -> None:
        """A query with these tokens writes a shared stream, which a class owns."""
        stream = log.ref.id
        self._shared[stream] = cls, tuple(tokens)
        self.command(ev.Publish(stream, cls, frozenset(tokens)))

    def windowed(self, *tokens: str) -> None:
        """The answers of queries with these tokens are windows that the watermark closes."""
        self._windowed.update(tokens)
        self.command(ev.MarkWindowed(frozenset(tokens)))

    def last_stage(self, key: str, batch: int | None = None) -> None:
        """The driver says that a job of a query's batch has started its last stage."""
        if not self.silent:
            self.tell("last_stage", key)
            self.handle(ev.LastStageStarted(self.at(), self._tokens(self.queries[key]), batch))

    def go_on(self, key: str) -> None:
        """A query whose tasks have ended goes on now."""
        self.queries[key].next_s = self.at().timer_s

    def job_ended(self, key: str, batch: int, tasks: int, core_s: float, ready_ago_s: float) -> None:
        """The driver says what the tasks of a job took."""
        if self.tells_cores and not self.silent:
            tokens = self._tokens(self.queries[key])
            self.handle(ev.JobEnded(self.at(), tokens, batch, tasks, core_s, ready_ago_s))

    def tell_tasks(self) -> None:
        """The driver says how many tasks of each query run now."""
        if self.tells_cores and not self.silent:
            jobs = self.cores.running()
            running = {
                self._tokens(query): jobs[query.job] for query in self.queries.values() if query.job in jobs
            }
            self.handle(ev.TasksSeen(self.at(), "", running))

    def resize(self, cores: int) -> None:
        """Executors come or go: the cluster has so many cores from now on."""
        self.cores.resize(cores, self.at().timer_s)
        if self.tells_cores and not self.silent:
            self.handle(ev.CoresChanged(self.at(), "", cores))

    def tell_again(self) -> None:
        """A new control plane hears what the one before it knew."""
        if self.tells_cores:
            self.handle(ev.CoresChanged(self.at(), "", self.cores.count))
        self.command(ev.MarkWindowed(frozenset(self._windowed)))
        for stream, (cls, tokens) in self._shared.items():
            self.command(ev.Publish(stream, cls, frozenset(tokens)))
