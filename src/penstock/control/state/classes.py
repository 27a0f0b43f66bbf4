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
    """How often a manager decides that does not give grants."""
    shedder: Shedder | None = None
    """What chooses over all queries of the class; `None` where each query sheds by itself."""
    strategy: ShedStrategy | None = None
    """How the shedder is asked, and how its decisions are carried out; `None` where there is no shedder."""
    not_before_s: float = -math.inf
    """On the timer, when it is next looked at whether a cycle of turns is over that was not."""

    @property
    def asked_s(self) -> float:
        """On the timer, when a manager that decides periodically may be asked next."""
        return max(self.plant.last_s + self.period_s, self.not_before_s)


def govern(
    name: str, config: ClassConfig, plant: ClassPlant, recorder: Recorder | None, dry_run: bool, seed: int
) -> GovernedClass:
    """A class with a fresh manager, on a plant that may have run before."""
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
    """What a fresh manager's headroom is multiplied by: it is that of its class, unless the user gave one.

    Never by 0: a manager multiplies what it has, and would have nothing for ever after its class has a share.
    """
    return 1.0 if config.headroom_given else max(claim, LEAST_SHARE)


def check_stream(config: ClassConfig, stream: StreamInfo, others: Iterable[StreamInfo] = ()) -> None:
    """Said when a reader joins: a batch that cannot be planned would end the query in the first overload.

    Args:
        config: Of its class.
        stream: What it reads.
        others: What the other readers of its query read.
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
