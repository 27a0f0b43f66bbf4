"""Runs a case: feeds streams, does things to queries and the control plane, and checks after every step."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pyarrow as pa

import penstock.control.core.members as members_module
import penstock.grants.journal as journal_module
import penstock.spark.source.link as asking_module
import penstock.spark.source.planner as planner_module
from penstock.config.flow import load_flow_config
from penstock.control.tuning import TUNING
from penstock.grants.offset import Offset
from penstock.sim.microbatch import Line, Machine, SimulatedQuery, VirtualCluster
from penstock.spark.source.data_source import PenstockStreamReader
from penstock.spark.source.options import SourceOptions
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig

from . import actions
from .case import Case, QueryCase, StreamCase, random_of
from .checks import Ledger, Truth, check_all, check_grant, check_lanes
from .source import METADATA, RealSource
from .wire import Wire

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("v", pa.float64())])
STEP_S = (0.05, 0.15, 0.3)
KEY_BUCKETS = 16
CUT_BYTES = 3_000
FIRST_ROWS = 40
FILE_BYTES = 4000
"""Small files, so that trimming removes some."""


@dataclass(eq=False)
class Fed:
    """A stream of the world, and who appends to it."""

    log: EmbeddedLog
    case: StreamCase | None = None
    random: np.random.Generator | None = None
    owed: float = 0.0


@dataclass(eq=False)
class Running:
    """A query of the world, its case, and what it has read."""

    case: QueryCase
    query: SimulatedQuery
    token: str
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    restart_s: float | None = None
    """When it starts again after it was lost."""


class World:
    """Everything that one case is about. Use as a context manager: it lies in a temporary folder.

    Args:
        case: What happens.
        real: Whether its sources are the real ones, else those of the plant.
    """

    def __init__(self, case: Case, real: bool = True) -> None:
        self.case, self.real = case, real
        self.streams: dict[str, Fed] = {}
        self.running: dict[str, Running] = {}
        self.truths: dict[str, Truth] = {}
        self.ids = 0
        self.checked = 0
        self._open = ExitStack()

    def __enter__(self) -> World:
        memory = Path("/dev") / "shm"  # journals are forced to the disk with every grant
        place = memory if os.access(memory, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-", dir=place))
        self._open.callback(shutil.rmtree, self.folder, ignore_errors=True)
        keys = dict(self.case.flow)
        tuning = replace(TUNING, first_rows=FIRST_ROWS, eager=keys.pop("eager"))
        config = {"log": self.folder, "classes": self.case.classes, **keys}
        self.cluster = VirtualCluster(load_flow_config(config), tuning=tuning)
        self.wire = Wire(self.cluster)
        self._open.enter_context(_virtual_time(self.cluster))
        self.errors = self._open.enter_context(_errors_logged())
        for stream in self.case.streams:
            self._add_stream(stream)
        self._later = list(self.case.queries)
        self._add_due(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        for running in self.running.values():
            if not running.query.stopped:
                self.cluster.stop(running.query)
        self._open.close()

    # -- what there is ----------------------------------------------------------------------------

    def _add_stream(self, case: StreamCase) -> None:
        skew_s, clock = case.skew_s, self.cluster.clock
        log = self._create(case.name, case, lambda: clock() + skew_s)
        self.streams[case.name] = Fed(log, case, random_of(self.case.seed, f"feed {case.name}"))

    def _create(self, name: str, case: StreamCase | None, clock: object) -> EmbeddedLog:
        config = LogConfig(
            partitions=1 if case is None else case.partitions,
            key="k" if case is not None and case.key else None,
            key_buckets=KEY_BUCKETS,
            segment_rows=50 if case is None else case.segment_rows,
            file_bytes=FILE_BYTES,
        )
        log = EmbeddedLog.create(self.folder / name, SCHEMA, config, clock=clock)  # type: ignore[arg-type]
        self.truths[name] = Truth(log)
        return self._open.enter_context(log)

    def _add_query(self, case: QueryCase) -> None:
        names = list(case.streams)
        if case.behind is not None:
            names.append(self._shared_stream_of(case.behind))
        slots = {f"slot{i}": name for i, name in enumerate(names)} if len(names) > 1 else {"": names[0]}
        token = f"token of {case.name}"
        options = {slot: self._options(case, slot, name, token) for slot, name in slots.items()}
        offsets = {
            slot: Offset.from_json(PenstockStreamReader(o).initialOffset()) for slot, o in options.items()
        }
        # as the source says hello: readers of one query are known by its name, a single one by its id
        key = f"{case.name}@" if len(names) > 1 else offsets[""].reader
        by_reader = {offsets[slot].reader: o for slot, o in options.items()}

        def source(query: SimulatedQuery, line: Line, offset: Offset) -> RealSource:
            return RealSource(self, self.wire, by_reader[offset.reader], case.available_now)

        running = Running(case, None, token)  # type: ignore[arg-type] - it starts below
        for slot, offset in offsets.items():
            stream = slots[slot]
            running.ledgers[offset.reader] = Ledger(offset, self.truths[stream], options[slot].shed_lane)
        self.running[case.name] = running
        running.query = self.cluster.add(
            key,
            case.cls,
            {slot: self.streams[name].log for slot, name in slots.items()},
            Machine(case.fixed_s, case.row_s, case.noise, jobs=case.jobs, last_stage_fraction=0.3),
            seed=self.case.seed,
            token=token,
            offsets=offsets,
            available_now=case.available_now,
            source=source if self.real else None,
        )
        if self.case.has("poison"):
            running.query.fails = lambda given: self._fails(running, given)

    def _add_due(self, passed_s: float) -> None:
        """Starts the queries whose time has come; one behind a shared stream after its writer."""
        for case in list(self._later):
            if case.starts_s <= passed_s:
                self._later.remove(case)
                self._add_query(case)

    def _shared_stream_of(self, writer: str) -> str:
        name = f"by_{writer}"
        if name not in self.streams:
            self.streams[name] = Fed(self._create(name, None, self.cluster.clock))
            written = self.running[writer]
            written.query.writes, written.query.written = self.streams[name].log, self.rows
            self.cluster.share(self.streams[name].log, written.case.cls, [written.token])
        return name

    def _options(self, case: QueryCase, slot: str, stream: str, token: str) -> SourceOptions:
        config = self.cluster.engine.config
        cls = config.classes[case.cls]
        place = str(self.folder / stream)
        return SourceOptions(
            place,
            place,
            query=case.name,
            cls=case.cls,
            address="unix:///nowhere",
            metadata=METADATA,
            tasks=case.tasks,
            fail_open_after_s=config.fail_open_after_s,
            poison_after=cls.poison_after or 0,
            shed_lane=cls.shed_lane,
            slot=slot,
            token=token,
            stw_s=config.stw_s,
        )

    def rows(self, count: int) -> pa.RecordBatch:
        """New rows; every row of the world has a number of its own."""
        ids = np.arange(self.ids, self.ids + count)
        self.ids += count
        values = [ids, [f"k{i % 37}" for i in ids.tolist()], (ids * 7919 % 1000) / 1000.0]
        return pa.record_batch(values, schema=SCHEMA)

    # -- what happens -----------------------------------------------------------------------------

    def run(self) -> None:
        """All of the case's virtual time."""
        random, began_s = random_of(self.case.seed, "steps"), self.cluster.timer()
        acting = {name: random_of(self.case.seed, f"act {name}") for name in actions.ACTIONS}
        while (passed_s := self.cluster.timer() - began_s) < self.case.seconds:
            self._add_due(passed_s)
            step_s = float(random.choice(STEP_S))
            self._feed(step_s)
            self._restart()
            for name, (chance_per_s, act) in actions.ACTIONS.items():
                tossed = acting[name].random()  # also where it is off: what others do stays the same
                if self.case.has(name) and tossed < chance_per_s * step_s:
                    act(self, acting[name])
            self.cluster.run(step_s)
            self.check()
        self.settle()

    def _feed(self, step_s: float) -> None:
        for fed in self.streams.values():
            if fed.case is None or fed.random is None:
                continue
            burst = 3.0 if fed.random.random() < 0.15 else 1.0
            silent = self.case.has("quiet") and int(self.cluster.timer() / 4) % 2 == 1
            fed.owed += 0.0 if silent else fed.case.rate_per_s * step_s * burst
            count, fed.owed = int(fed.owed), fed.owed % 1.0
            for p in range(fed.case.partitions):
                mine = count // fed.case.partitions + (p < count % fed.case.partitions)
                if mine:
                    fed.log.append(self.rows(mine), p)

    def _restart(self) -> None:
        for running in self.running.values():
            query, now_s = running.query, self.cluster.timer()
            if query.stopped and query.error is not None and running.restart_s is None:
                running.restart_s = now_s + 0.2
            if running.restart_s is not None and now_s >= running.restart_s:
                running.restart_s = None
                self.cluster.start(query)

    def _fails(self, running: Running, given: object) -> bool:
        """A batch with a row whose number is a multiple of some number fails, whenever it runs."""
        return any(ledger.last_has_poison(actions.POISON_EVERY) for ledger in running.ledgers.values())

    def ran(self, offset: Offset, rows: pa.Table | None) -> int:
        """A source has planned a batch, and its tasks have read these rows; returns how many."""
        ledger = self.ledger(offset.reader)
        ledger.truth.update()
        check_grant(ledger, offset, rows)
        return ledger.last.size

    def ledger(self, reader: str) -> Ledger:
        return next(r.ledgers[reader] for r in self.running.values() if reader in r.ledgers)

    def check(self) -> None:
        for truth in self.truths.values():
            truth.update()
        check_all(self)
        self.checked += 1

    def settle(self) -> None:
        """At the end: all queries run again for a while, then every row of every lane is looked at."""
        if self.cluster.silent:
            self.cluster.speak()
        for running in self.running.values():
            running.query.crash_at = None
            if running.query.stopped and running.query.error is not None:
                self.cluster.start(running.query)
        self.cluster.run(1.0)
        self.check()
        for running in self.running.values():
            check_lanes(running)

    def tally(self) -> Counter[str]:
        """What there was, to see that something was."""
        counts: Counter[str] = Counter(checks=self.checked)
        for running in self.running.values():
            counts["batches run again"] += sum(batch.runs - 1 for batch in running.query.batches)
            counts["ticks"] += running.query.ticks
            for ledger in running.ledgers.values():
                counts["grants"] += len(ledger.offsets)
                counts["grants that shed"] += sum(
                    bool(o.late) or not o.plan.keeps_all for o in ledger.offsets.values()
                )
                counts["grants set aside"] += len(ledger.aside)
                counts["ungoverned grants"] += sum(o.ungoverned for o in ledger.offsets.values())
                counts["rows backfilled"] += ledger.backfilled.size
                books = running.query.offsets[ledger.reader].books
                counts["rows admitted"] += books.admitted
                counts["rows shed"] += books.shed
        return counts


@contextmanager
def _virtual_time(cluster: VirtualCluster) -> Iterator[None]:
    """The clocks of planners are the cluster's, and ids of readers are the same in every run.

    First batches are as small as the streams are: else most of a case would pass before anything is shed.
    Journals are cut, and queries forgotten, as early as can be.
    """
    minted = iter(range(1 << 40))
    with (
        mock.patch.object(asking_module, "FIRST_ROWS", FIRST_ROWS),
        mock.patch.object(journal_module, "CUT_BYTES", CUT_BYTES),
        mock.patch.object(members_module, "QUERIES", 1),
        mock.patch.object(members_module, "AWAY_S", 0.0),
        mock.patch.object(planner_module, "time", SimpleNamespace(monotonic=cluster.timer)),
        mock.patch.object(
            planner_module,
            "uuid",
            SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{next(minted):012x}")),
        ),
    ):
        yield


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def _errors_logged() -> Iterator[list[str]]:
    """What Penstock logs as an error: it says so where it goes on after a defect of its own."""
    logger, handler = logging.getLogger("penstock"), _Errors()
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
