"""Which queries can be estimated: counts, sums and averages of one value, over windows of one stream."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from penstock.cql.analysis.windowing import closing_windows
from penstock.cql.errors import CqlError
from penstock.cql.meaning.lower import leaves_of
from penstock.cql.meaning.plan import Aggregate, Map, Query, Windowed

FUNCTIONS = {"COUNT": "count", "SUM": "sum", "AVG": "avg"}
PARTS = ("error", "low", "high")
"""Endings of the columns beside an estimate: `name_error` and so on."""
INTERVAL = "interval"
"""Column that says what the intervals rest on, or why there are none."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """A query that can be estimated.

    Attributes:
        window: The tuples and their window.
        value: The column that is summed and averaged; `None` if tuples are counted.
        keys: Columns of the tuples that the query groups by, by their names in the answer.
        aggregates: Kinds of estimates (count, sum or avg), by their names in the answer.
        names: Names of the answer's columns, in order.
    """

    window: Windowed
    value: str | None
    keys: dict[str, str]
    aggregates: dict[str, str]
    names: tuple[str, ...]


def estimated(query: Query) -> Estimated:
    """The estimates of a query.

    Raises:
        CqlError: Some part of the query cannot be estimated.
    """
    shown = closing_windows(query.plan)
    grouped = shown.input if isinstance(shown, Map) else shown
    if not isinstance(grouped, Aggregate) or not isinstance(grouped.input, Windowed):
        raise _refused("a plan with joins, DISTINCT, HAVING or no aggregate")
    if leaves_of(grouped.input.input) != [grouped.input.input]:
        raise _refused("several streams")
    items = shown.items if isinstance(shown, Map) else tuple(exp.column(c.name) for c in grouped.columns)
    names = [column.name for column in grouped.columns]
    keys: dict[str, str] = {}
    aggregates: dict[str, str] = {}
    for name, item in zip(query.names, items, strict=True):
        if not isinstance(item, exp.Column):
            raise _refused(f"{name}, an expression of aggregates")
        at = names.index(item.name)
        if at < len(grouped.keys):
            keys[name] = grouped.keys[at]
            continue
        function = grouped.aggregates[at - len(grouped.keys)].function
        if function not in FUNCTIONS:
            raise _refused(function)
        aggregates[name] = FUNCTIONS[function]
    values = {each.arguments for each in grouped.aggregates}
    if len(values) != 1:
        raise _refused("aggregates of different values" if () not in values else "COUNT(*) beside others")
    (arguments,) = values
    hidden = [key for key in grouped.keys if key not in keys.values()]
    if hidden:
        raise _refused("a GROUP BY that the answer does not show")
    _check_names(query.names, aggregates)
    return Estimated(grouped.input, arguments[0] if arguments else None, keys, aggregates, query.names)


def _check_names(names: tuple[str, ...], aggregates: dict[str, str]) -> None:
    added = {f"{name}_{part}".lower() for name in aggregates for part in PARTS} | {INTERVAL}
    for name in names:
        if name.lower() in added:
            rule = f"{', '.join(sorted(added))} stand beside the columns of an estimated answer"
            raise CqlError(rule, repr(name), "name it otherwise, with AS")


def _refused(got: str) -> CqlError:
    return CqlError(
        "estimates are of COUNT, SUM and AVG of one value, over the windows of one stream",
        got,
        "SELECT device, count(value), avg(value) FROM readings [RANGE 1 MIN SLIDE 1 MIN] GROUP BY device",
    )
