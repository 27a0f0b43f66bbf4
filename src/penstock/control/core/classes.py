"""The governed classes, the time that they share, and what they do periodically."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from penstock.config.flow import ClassConfig, FlowConfig
from penstock.control.core.instructions import Outbox
from penstock.control.decide.observing import ClassPlant
from penstock.control.schedule.scheduler import Scheduler
from penstock.control.schedule.shares import Redistribution
from penstock.control.schedule.snapshot import ClassTraits, Snapshot
from penstock.control.state.classes import GovernedClass, first_scale, govern
from penstock.control.state.guard import Guard
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.errors import UnknownNameError
from penstock.vocabulary.moment import Moment
from penstock.vocabulary.status import ClassStatus


class Classes(Mapping[str, GovernedClass]):
    """The classes by name, in the order of the configuration.

    Args:
        config: The configuration of the flow.
        at: The present time.
        guard: Calls the capacity policy.
        out: Gets the decisions of load managers.
        tuning: Tuned constants.
    """

    def __init__(
        self, config: FlowConfig, at: Moment, guard: Guard, out: Outbox, tuning: Tuning = TUNING
    ) -> None:
        self._config, self._guard, self._out, self._tuning = config, guard, out, tuning
        self.capacity = Redistribution(
            config.capacity.build_policy(), list(config.query_classes().values()), every=1
        )
        eager = tuning.eager or config.capacity.batches == "eager"  # the second is an old key
        self.scheduler = Scheduler(self.capacity, eager, guard, tuning)
        self._governed: dict[str, GovernedClass] = {}
        for name, cls in config.classes.items():
            self._governed[name] = self.govern(name, cls, ClassPlant(cls.query_class(name), at.timer_s))
        self.removed: dict[str, ClassStatus] = {}
        """By removed class, its last status."""
        self.started_s = self._last_s = self._divided_s = at.timer_s
        self._waiting: set[str] = set()
        """Classes with waiting rows at the last look at all queries."""

    # -- a mapping ------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> GovernedClass:
        return self._governed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._governed)

    def __len__(self) -> int:
        return len(self._governed)

    def governed(self, name: str) -> GovernedClass:
        """Returns the class with a name that a user gave."""
        if name not in self._governed:
            raise UnknownNameError("class", name, self._governed)
        return self._governed[name]

    @property
    def priorities(self) -> dict[str, float]:
        return {name: governed.config.priority for name, governed in self.items()}

    def traits(self) -> list[ClassTraits]:
        """Returns, for each class, the facts on which turns depend."""
        return [
            ClassTraits(
                name,
                governed.plant.cls.priority,
                governed.plant.cls.delay_target_s,
                governed.traits.overrun_fraction,
            )
            for name, governed in self.items()
        ]

    # -- changes --------------------------------------------------------------------------------

    def govern(self, name: str, config: ClassConfig, plant: ClassPlant) -> GovernedClass:
        """Returns a class with a fresh manager. Its plant may have had another manager before."""
        governed = govern(name, config, plant, self._out, self._config.dry_run, self._config.seed)
        plant.capacity_scale = first_scale(config, self.capacity.claims[name])
        return governed

    def put(self, name: str, governed: GovernedClass) -> None:
        """Puts new settings of a class in force."""
        self._governed[name] = governed
        self.capacity.change(governed.plant.cls)

    def remove(self, name: str, last: ClassStatus) -> None:
        """Removes a class, and divides its share among the other classes."""
        self.removed[name] = last
        del self._governed[name]
        self.scheduler.forget_class(name)
        for other, scale in self.capacity.remove(name).items():
            self[other].plant.capacity_scale *= scale

    def targets_s(self) -> dict[str, float]:
        """By class, its delay target."""
        return {name: governed.plant.cls.delay_target_s for name, governed in self.items()}

    # -- time -----------------------------------------------------------------------------------

    def pass_time(self, at: Moment, held: Collection[Query], had_s: Mapping[str, float] | None) -> None:
        """Books the time since the last event: in which classes batches ran, and in which rows waited.

        Args:
            at: The present time.
            held: Queries whose batch ran.
            had_s: By query, the machine seconds that its batch had; `None`: each batch had all the time.
        """
        passed_s, self._last_s = at.timer_s - self._last_s, at.timer_s
        if passed_s <= 0.0:
            return
        if had_s is None:
            self.scheduler.pass_time(len(held), passed_s)
        running = {query.cls for query in held}
        for name in running | self._waiting:
            if name in self._governed:
                self[name].plant.period.busy_s += passed_s
        for query in held:
            work_s = passed_s if had_s is None else had_s.get(query.key, 0.0)
            self[query.cls].plant.period.work_s += work_s

    def saw(self, seen: Snapshot) -> None:
        """Notes for which classes rows waited at a look at all queries."""
        self._waiting = {seen.classes[i].name for i in set(seen.cls[seen.rows > 0].tolist())}

    def divide(self, seen: Snapshot, at: Moment) -> None:
        """Divides the time between the classes anew."""
        since_s, self._divided_s = at.timer_s - self._divided_s, at.timer_s
        scales: Mapping[str, float] = self._guard.call(
            f"capacity policy {self._config.capacity.policy}",
            lambda: self.scheduler.redistribute(seen, since_s),
            lambda _: {},
            "the classes keep the shares they have",
            at.timer_s,
        )
        for name, scale in scales.items():
            self[name].plant.capacity_scale *= scale

    @property
    def _divide_every_s(self) -> float:
        """Time between two redistributions: a part of the shortest target, unless a user set it."""
        shortest_s = min(governed.plant.cls.delay_target_s for governed in self.values())
        return self._config.capacity.every_s or shortest_s * self._tuning.divided_at

    def is_division_due(self, at: Moment) -> bool:
        return at.timer_s >= self._divided_s + self._divide_every_s

    def periods_due(self, at: Moment) -> list[str]:
        """Returns the classes whose manager decides periodically and must be asked now."""
        return [
            name
            for name, governed in self.items()
            if not governed.traits.gives_grants and at.timer_s >= governed.asked_s
        ]

    def is_cycle_over(self, name: str, cycle_s: float, at: Moment) -> bool:
        """Whether a turn interval has passed since a class's last observation.

        Only then can the manager's observation have a complete batch. If the interval has not passed, the
        manager is asked again later.
        """
        governed = self[name]
        left_s = governed.plant.last_s + cycle_s - at.timer_s
        wait_s = max(self._tuning.ask_again_fraction * left_s, self._tuning.look_every_s)
        governed.not_before_s = at.timer_s + (wait_s if left_s > 0.0 else 0.0)
        return left_s <= 0.0

    @property
    def due_s(self) -> float:
        """The time, on the timer, of the next periodic decision."""
        periods_s = (governed.asked_s for governed in self.values() if not governed.traits.gives_grants)
        soon_s = self._last_s + self._tuning.look_every_s
        return min(self._divided_s + self._divide_every_s, max(min(periods_s, default=math.inf), soon_s))
