"""Elements of CQL that SQL does not have, as expressions of sqlglot."""

from __future__ import annotations

from sqlglot import exp

TO_STREAM = ("ISTREAM", "DSTREAM", "RSTREAM")


class StreamWindow(exp.Expression):
    """`[NOW]`, `[UNBOUNDED]`, `[RANGE n unit SLIDE m unit]`, `[ROWS n SLIDE m]`, `[PARTITION BY a ROWS n]`.

    `this` is the kind in upper letters; `size` and `slide` are seconds for RANGE and tuples for ROWS and
    PARTITION; `expressions` are the columns of PARTITION.
    """

    arg_types = {"this": True, "size": False, "slide": False, "expressions": False}


class Source(exp.Expression):
    """An item of FROM: a name, a query in parentheses or a stream operator, with a window and an alias."""

    arg_types = {"this": True, "window": False, "alias": False}


class ToStream(exp.Expression):
    """`ISTREAM(query)`, `DSTREAM(query)` or `RSTREAM(query)`; `kind` is in upper letters."""

    arg_types = {"this": True, "kind": True}


class Register(exp.Expression):
    """`REGISTER STREAM name (columns) [FROM 'data'] [TIMESTAMP BY column]`, or `... name AS query`.

    `kind` is STREAM, RELATION, VIEW or QUERY; a QUERY is run and has a name. A relation with columns may have
    `sign`, the column that says whether a row inserts or deletes, and `keys`.
    """

    arg_types = {
        "this": True,
        "kind": True,
        "expressions": False,
        "query": False,
        "data": False,
        "timestamp": False,
        "sign": False,
        "keys": False,
    }


class RegisteredColumn(exp.Expression):
    """A column of a registered stream: its name, and its type as penstock names types."""

    arg_types = {"this": True, "type": True}


class WholeDiv(exp.Expression, exp.Binary):
    """A division of whole numbers without the fraction. Nobody writes it: a bound expression has it in place
    of a `/` whose sides are whole.
    """
