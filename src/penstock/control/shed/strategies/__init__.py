"""Strategies: what a class's shedder chooses among, and the plans that its decision makes. One file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config.shed_settings import Choice, ShedSettings
from penstock.control.shed.strategies.base import ShedStrategy
from penstock.control.shed.strategies.keys import KeyStrategy
from penstock.control.shed.strategies.segments import SegmentStrategy
from penstock.control.shed.strategies.windows import WindowStrategy
from penstock.control.shed.strategies.worth import WorthStrategy

STRATEGIES: Mapping[Choice, Callable[..., ShedStrategy]] = {
    "segments": SegmentStrategy,
    "keys": KeyStrategy,
    "worth": WorthStrategy,
    "windows": WindowStrategy,
}
"""By what a shedder chooses among, the strategy. It takes the settings that declare this choice."""


def strategy_for(settings: ShedSettings) -> ShedStrategy | None:
    """Returns the strategy for what a class sheds; `None` where each query sheds by itself."""
    return None if settings.shedder is None else STRATEGIES[settings.traits.chooses](settings)
