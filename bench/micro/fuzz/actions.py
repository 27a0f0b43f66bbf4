"""What is done to queries, lanes and the control plane, each now and then."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock.lanes.lane import shed_rows
from penstock.lanes.progress import LaneStore, Stretch
from penstock.sim.microbatch import Point, QueryLostError

from .case import all_keyed, class_of

if TYPE_CHECKING:
    from .world import Running, World

Action = Callable[["World", np.random.Generator], None]

POISON_EVERY = 9973
"""A row whose number is a multiple of this makes its batch fail."""


def _one(world: World, random: np.random.Generator) -> Running | None:
    live = [running for running in world.running.values() if not running.query.stopped]
    return live[random.integers(len(live))] if live else None


def _pass(world: World, random: np.random.Generator) -> None:
    for _ in range(random.integers(1, 4)):
        world.cluster.run(0.2)
        world.check()


def crash(world: World, random: np.random.Generator) -> None:
    """A query is lost: now, or at a point of its next grant."""
    running, point = _one(world, random), random.integers(len(Point) + 1)
    if running is None:
        return
    if point == len(Point):
        world.cluster.crash(running.query)
    else:
        world.cluster.crash(running.query, list(Point)[point])


def orphan(world: World, random: np.random.Generator) -> None:
    """A grant is proposed and not logged; sometimes the process ends within its next line of the journal."""
    running = _one(world, random)
    if running is None:
        return
    world.cluster.crash(running.query, Point.PROPOSED)
    world.cluster.run(float(random.choice([0.1, 0.5])))
    lost = isinstance(running.query.error, QueryLostError)
    if running.query.stopped and lost and random.random() < 0.5:
        for ledger in running.ledgers.values():
            path = ledger.truth.log.directory / "plans" / f"{ledger.reader}.jsonl"
            if path.exists():
                line = json.dumps({"proposed": running.query.offsets[ledger.reader].to_json()})
                with path.open("a") as journal:
                    journal.write(line[: random.integers(1, len(line))])


def poison(world: World, random: np.random.Generator) -> None:
    """Nothing to do: rows fail by their numbers."""


def replace(world: World, random: np.random.Generator) -> None:
    world.cluster.speak(anew=True)


def hush(world: World, random: np.random.Generator) -> None:
    """Silence for a while; then the old control plane goes on, or a new one."""
    if world.cluster.silent:
        return
    world.cluster.hush()
    for _ in range(random.integers(1, 6)):
        world.cluster.run(0.4)
        world.check()
    world.cluster.speak(anew=bool(random.random() < 0.5))


def lose(world: World, random: np.random.Generator) -> None:
    running = _one(world, random)
    if running is not None:
        sources = list(running.query.sources.values())
        sources[random.integers(len(sources))].lose()


def change(world: World, random: np.random.Generator) -> None:
    """Some keys of a class; a refusal (a target below the floor) is an answer, too."""
    names = list(world.case.classes)
    name = names[random.integers(len(names))]
    drawn = class_of(random, all_keyed(name, world.case.streams, world.case.queries))
    chosen = {key: value for key, value in drawn.items() if random.random() < 0.4}
    if random.random() < 0.5:  # what is shed changes more often than the rest
        chosen["shed"] = drawn["shed"]
    if random.random() < 0.3:
        chosen["priority"] = float(random.choice([1, 2, 5]))
    world.wire.tell("change", cls=name, changes=chosen)


def kill(world: World, random: np.random.Generator) -> None:
    """Nothing is shed for a moment."""
    world.wire.tell("shedding", on=False)
    _pass(world, random)
    world.wire.tell("shedding", on=True)


def drain(world: World, random: np.random.Generator) -> None:
    """A query sheds nothing, or gets nothing, for a moment."""
    running = _one(world, random)
    if running is not None:
        op = str(random.choice(["drain", "refuse"]))
        world.wire.tell(op, tokens=[running.token], on=True)
        _pass(world, random)
        world.wire.tell(op, tokens=[running.token], on=False)


def clock(world: World, random: np.random.Generator) -> None:
    """A small step, of either sign."""
    world.cluster.clock.now_s += float(random.choice([-0.5, -0.05, 0.05, 0.5]))


def backfill(world: World, random: np.random.Generator) -> None:
    """The first grants of a lane are backfilled, as `penstock backfill` does it: each row once."""
    lanes = [
        ledger for running in world.running.values() for ledger in running.ledgers.values() if ledger.lane
    ]
    if not lanes:
        return
    ledger = lanes[random.integers(len(lanes))]
    store = LaneStore(ledger.truth.log.directory, ledger.reader)
    journal = store.journal()
    with store.held():
        undone = store.undone(journal)
        if not undone:
            return
        progress = store.load(journal)
        entries = undone[: random.integers(1, len(undone) + 1)]
        first, last = (entries[i].offset.grant for i in (0, -1))
        stretch = Stretch(store.next_revision(), first, last, "sink")
        progress = store.begin(progress, stretch)
        ids = [p.rows.column("id").to_numpy() for e in entries for p in shed_rows(store.log, e)]
        found = np.concatenate([np.empty(0, np.int64), *ids])
        ledger.backfilled = np.concatenate([ledger.backfilled, found])
        ledger.backfilled_to = last
        store.finish(progress, journal, stretch, found.size, 0, {})


def notices(world: World, random: np.random.Generator) -> None:
    """What a driver tells: windows, dropped rows, a last stage too many; and looks at what is going on."""
    running = _one(world, random)
    if running is None:
        return
    query = running.query
    op = random.integers(4)
    if op == 0:
        world.wire.tell("windows", tokens=[running.token])
    elif op == 1 and query.batches:
        batch = query.batches[-1]
        rows = [[batch.offset.reader, batch.offset.grant, float(random.random() * batch.rows.sum())]]
        world.wire.tell("dropped", batch=query.number, rows=rows)
    elif op == 2:
        world.wire.tell("last_stage", tokens=[running.token], batch=query.number)
    else:
        for looking in ("status", "plan", "mark", "config"):
            message = {"tokens": []} if looking == "mark" else {}
            world.wire.tell(looking, **message)


ACTIONS: dict[str, tuple[float, Action]] = {
    "crash": (0.8, crash),
    "orphan": (0.3, orphan),
    "poison": (0.0, poison),
    "replace": (0.1, replace),
    "hush": (0.1, hush),
    "lose": (0.2, lose),
    "change": (0.5, change),
    "kill": (0.2, kill),
    "drain": (0.3, drain),
    "clock": (0.5, clock),
    "backfill": (0.8, backfill),
    "notices": (1.0, notices),
}
"""By feature, how often a virtual second, and what."""
