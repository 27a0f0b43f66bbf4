"""Queries whose windows close, so that each window's result can be given once; and which mode a query has."""

from __future__ import annotations

from penstock.cql.errors import CqlError
from penstock.cql.explain import window_words
from penstock.cql.plan import Plan, Scan, ToStream, Windowed, WindowKind

RELATION_HINT = "run it in relation mode, which gives the exact answer as changes"


def closing_windows(plan: Plan) -> Plan:
    """The part of a plan that is computed window by window: without the RSTREAM or ISTREAM around it.

    Each window's result is a relation that is given once, which is what RSTREAM at the windows' ends gives.

    Raises:
        CqlError: A window does not close, or windows are not all alike, or a stream of results is windowed.
    """
    if isinstance(plan, ToStream):
        if plan.kind == "DSTREAM":
            raise CqlError(
                "each window's result comes once and never leaves",
                "DSTREAM",
                f"leave it out, or {RELATION_HINT}",
            )
        plan = plan.input
    windows = [each for each in plan.walk() if isinstance(each, Windowed)]
    for each in plan.walk():
        if isinstance(each, ToStream):
            raise CqlError(
                "a query by windows has windows over registered streams alone",
                f"{each.kind} inside it",
                f"register it as a stream of its own, or {RELATION_HINT}",
            )
    for each in windows:
        if each.window.kind is not WindowKind.RANGE:
            raise CqlError(
                "a window whose result comes once closes, as [RANGE n SLIDE m] does",
                f"[{window_words(each.window)}]",
                f"give it a range, or {RELATION_HINT}",
            )
    kinds = {(each.window.size, each.window.slide or each.window.size) for each in windows}
    if len(kinds) > 1:
        shown = " and ".join(sorted(f"[{window_words(each.window)}]" for each in windows))
        raise CqlError(
            "a query by windows has windows that close together",
            shown,
            f"give them one size, or {RELATION_HINT}",
        )
    return plan


def default_mode(plan: Plan) -> str:
    """`windows` for a query over windows with a slide, if they close together; else `relation`."""
    if not any(isinstance(each, Windowed) and each.window.slide is not None for each in plan.walk()):
        return "relation"
    try:
        closing_windows(plan)
    except CqlError:
        return "relation"
    return "windows"


def streams_read(plan: Plan) -> set[str]:
    """Names of the registered streams that a plan reads."""
    return {each.stream for each in plan.walk() if isinstance(each, Scan)}
