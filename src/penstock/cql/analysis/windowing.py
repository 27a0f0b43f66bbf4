"""Modes of a query's answers; checks whether windows close, so that each window's result is given once."""

from __future__ import annotations

from typing import Literal

from penstock.cql.analysis.explain import window_words
from penstock.cql.engine.bag import INSTANT, SIGN
from penstock.cql.errors import CqlError
from penstock.cql.meaning.lower import leaves_of, lowered
from penstock.cql.meaning.plan import Base, Plan, Query, Scan, ToStream, Windowed, WindowKind

Mode = Literal["windows", "relation", "rows"]
"""How answers are given: each window's result once, the exact relation as changes, or tuple by tuple."""
QUERY = "query"
"""Column of a family's answers: the name of the query that a row is for."""
SIC = "sic"
"""Column of a pipeline's answers: the fraction of rows that was admitted."""
WINDOW_COLUMNS, CHANGE_COLUMNS = ("window_start", "window_end"), (INSTANT, SIGN)
ADDED: dict[Mode, tuple[str, ...]] = {"windows": WINDOW_COLUMNS, "relation": CHANGE_COLUMNS, "rows": ()}
"""Columns that each mode adds to the columns of an answer."""
RELATION_HINT = "run it in relation mode, which gives the exact answer as changes"


def closing_windows(plan: Plan) -> Plan:
    """The part of a plan that is computed window by window: lowered, without RSTREAM or ISTREAM around it.

    Each window's result is a relation that is given once, as RSTREAM gives it at the window's end.

    Raises:
        CqlError: A window does not close, or windows differ, or a stream of results is windowed.
    """
    plan = lowered(plan)
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
        if isinstance(each, Base):
            raise CqlError(
                "a query by windows reads streams: a relation that changes has no window that closes",
                f"relation {each.relation}",
                RELATION_HINT,
            )
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
        if (each.window.slide or 0) > each.window.size:
            raise CqlError(
                "a window whose result comes once slides by no more than its size",
                f"[{window_words(each.window)}]",
                f"let it slide by less, or {RELATION_HINT}",
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


def tuple_by_tuple(plan: Plan) -> Plan:
    """The part of a plan that gives tuples of one stream, dropped and changed one by one.

    Raises:
        CqlError: The plan does more than that.
    """
    plan = lowered(plan)
    for each in plan.walk():
        if isinstance(each, Base):
            raise CqlError(
                "a query that gives tuples one by one reads a stream: those of a relation come and leave",
                f"relation {each.relation}",
                RELATION_HINT,
            )
    if isinstance(plan, Windowed) and plan.window.kind is WindowKind.UNBOUNDED:
        plan = plan.input  # tuples only come into this relation, so they are the stream
    if leaves_of(plan) != [plan]:
        raise CqlError(
            "a query that gives tuples one by one drops and changes those of one stream",
            "windows, groups, joins, DISTINCT or UNION",
            "SELECT ... FROM a stream WHERE ..., or another way to have the answer",
        )
    return plan


def default_mode(plan: Plan) -> Mode:
    """`windows` for a query over windows with a slide, if they close together; else `relation`."""
    if not any(isinstance(each, Windowed) and each.window.slide is not None for each in plan.walk()):
        return "relation"
    try:
        closing_windows(plan)
    except CqlError:
        return "relation"
    return "windows"


def check_mode(query: Query, mode: Mode, family: bool = False) -> None:
    """Refuses a query whose answer cannot be given in a mode.

    Args:
        query: The query.
        mode: The mode.
        family: Whether the query belongs to a family.

    Raises:
        CqlError: The query's windows do not close, or a column has the name of an added column.
    """
    if mode == "windows":
        closing_windows(query.plan)
    elif mode == "rows":
        tuple_by_tuple(query.plan)
    added = (*ADDED[mode], *((QUERY,) if family else ()), SIC)
    for name in query.names:
        if name.lower() in added:
            rule = f"{', '.join(added)} stand beside the columns of an answer"
            raise CqlError(rule, repr(name), "name it otherwise, with AS")


def streams_read(plan: Plan) -> set[str]:
    """Names of the registered streams and relations that a plan reads."""
    return {each.stream for each in plan.walk() if isinstance(each, Scan)} | relations_read(plan)


def relations_read(plan: Plan) -> set[str]:
    """Names of the registered relations that a plan reads."""
    return {each.relation for each in plan.walk() if isinstance(each, Base)}
