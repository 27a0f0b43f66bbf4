"""A governed class: its settings, its manager's cycle and the plant that the manager sees."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.config.flow import ClassConfig
from penstock.control.decide.cycle import CheckedManager, Recorder, SafetyLimits
from penstock.control.decide.observing import ClassPlant
from penstock.control.shed.strategies import strategy_for
from penstock.control.shed.strategies.base import ShedStrategy
from penstock.control.tuning import LEAST_SHARE
from penstock.policies.shedding.base import Shedder
from penstock.streams.tailing import StreamInfo
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import ManagerTraits


@dataclass(slots=True)
class GovernedClass:
    """One class while it runs."""

    name: str
    config: ClassConfig
    plant: ClassPlant
    cycle: CheckedManager
    traits: ManagerTraits
    period_s: float
    """Time between two decisions of a manager that decides periodically and gives no grants."""
    shedder: Shedder | None = None
    """Chooses rows over all queries of the class; `None` if each query sheds by itself."""
    strategy: ShedStrategy | None = None
    """Asks the shedder, and carries out its decisions; `None` without a shedder."""
    not_before_s: float = -math.inf
    """A periodic manager is not asked before this time, on the timer: its turn interval was not over."""

    @property
    def asked_s(self) -> float:
        """The earliest time, on the timer, of the next decision of a periodic manager."""
        return max(self.plant.last_s + self.period_s, self.not_before_s)


def govern(
    name: str, config: ClassConfig, plant: ClassPlant, recorder: Recorder | None, dry_run: bool, seed: int
) -> GovernedClass:
    """Returns a class with a fresh manager. Its plant may have had another manager before."""
    manager = config.build_manager()
    if manager.traits.sheds_inside:
        raise InvalidInputError(
            f"class {name}: on Spark rows are shed at the entry",
            "shedding: network",
            "leave it out; shedding inside the network is for simulations",
        )
    limits = SafetyLimits(config.min_keep_fraction)
    cycle = CheckedManager(manager, limits, config.dry_run or dry_run, recorder)
    period_s = manager.traits.period_s(config.target_s)
    shedder, strategy = config.build_shedder(seed), strategy_for(config.shed)
    return GovernedClass(name, config, plant, cycle, manager.traits, period_s, shedder, strategy)


def first_scale(config: ClassConfig, claim: float) -> float:
    """Returns the factor for a fresh manager's headroom: the class's share, or 1 if the user set a headroom.

    The factor is never 0. A manager multiplies its headroom by later changes of the share, so a headroom of 0
    would stay 0 for ever.
    """
    return 1.0 if config.headroom_given else max(claim, LEAST_SHARE)


def check_stream(config: ClassConfig, stream: StreamInfo, others: Iterable[StreamInfo] = ()) -> None:
    """Refuses a reader whose stream cannot be shed as its class wants.

    The reader is refused when it joins. Otherwise the first overload would end the query, because the batch
    could not be planned.

    Args:
        config: The configuration of the class.
        stream: The stream that the reader reads.
        others: The streams of the query's other readers.
    """
    if config.sheds_by_key and stream.key_column is None:
        raise InvalidInputError(
            "sampling by key needs a stream with a key",
            stream.name,
            "declare key: <column>, or sample by row",
        )
    unequal = sorted({stream.key_buckets, *(other.key_buckets for other in others)})
    if config.sheds_by_key and len(unequal) > 1:
        raise InvalidInputError(
            "streams of one query that are shed by key have equally many buckets, for the same keys to stay",
            " and ".join(map(str, unequal)),
            "give them the same key_buckets",
        )
    assert stream.user_schema is not None
    config.shed.check_columns(stream.user_schema, stream.name, stream.event_time)
