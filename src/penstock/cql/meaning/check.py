"""Advice on a query before it runs: above all, what it keeps for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.cql.meaning.plan import (
    Aggregate,
    Base,
    Distinct,
    Join,
    Plan,
    Scan,
    ToStream,
    Windowed,
    WindowKind,
)

NUMBER_BYTES, TEXT_BYTES, ROW_BYTES = 8, 32, 80
"""Rough bytes in a state store: of a number, of a text, and of a tuple beside its values."""
PER_S = 1000.0
"""Rate of tuples for which a warning says how much state they make in a day."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice.

    Attributes:
        says: The fact, and what it costs.
        hint: What to do about it.
        keeps_for_ever: Whether it is an error in strict mode.
    """

    says: str
    hint: str
    keeps_for_ever: bool = False


def only_grows(plan: Plan) -> bool:
    """Whether tuples of a relation never leave it."""
    if isinstance(plan, Windowed):
        return plan.window.kind is WindowKind.UNBOUNDED
    if isinstance(plan, Aggregate | Base):
        return False
    return plan.is_stream or all(only_grows(each) for each in plan.inputs)


def advice_on(plan: Plan) -> Iterator[Advice]:
    """Advice for a query's author, from the top of the plan down."""
    for each in plan.walk():
        if (
            isinstance(each, Windowed)
            and each.window.slide is not None
            and each.window.slide > each.window.size
        ):
            unit, by = ("s", 10**6) if each.window.by_time else (" tuples", 1)
            size, slide = each.window.size / by, each.window.slide / by
            yield Advice(
                f"a window of {size:g}{unit} that slides by {slide:g}{unit} leaves tuples out",
                "allowed; to see every tuple, let it slide by no more than its size",
            )
        if isinstance(each, Join):
            for side in each.inputs:
                if only_grows(side):
                    yield _kept_for_ever("a join", side)
        elif isinstance(each, Distinct) and only_grows(each.input):
            yield _kept_for_ever("DISTINCT", each.input, "every different tuple")
        elif isinstance(each, ToStream) and each.kind == "RSTREAM" and only_grows(each.input):
            yield _kept_for_ever("RSTREAM", each.input)


def _kept_for_ever(who: str, plan: Plan, what: str = "every tuple") -> Advice:
    streams = " and ".join(dict.fromkeys(each.stream for each in plan.walk() if isinstance(each, Scan)))
    size = row_bytes(plan)
    daily = size * PER_S * 86400 / 1e9
    return Advice(
        f"{who} keeps {what} of {streams} for ever: about {size} bytes each, "
        f"{daily:.0f} GB a day at {PER_S:,.0f} tuples a second",
        "give it a window, for example [RANGE 10 MINUTES]",
        keeps_for_ever=True,
    )


def row_bytes(plan: Plan) -> int:
    """Approximate bytes of a tuple in a state store."""
    return ROW_BYTES + sum(TEXT_BYTES if c.type == "STRING" else NUMBER_BYTES for c in plan.columns)
