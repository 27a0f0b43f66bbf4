"""CQL as text again, in one form."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.generator import Generator as SqlGenerator

from penstock.cql.language.nodes import Register, RegisteredColumn, Source, StreamWindow, ToStream, WholeDiv


def _seconds_sql(seconds: Any) -> str:
    return f"{seconds.normalize():f} SECONDS"


def _window_sql(generator: SqlGenerator, window: StreamWindow) -> str:
    kind, size, slide = window.this, window.args.get("size"), window.args.get("slide")
    if kind == "RANGE":
        return f"[RANGE {_seconds_sql(size)}" + (f" SLIDE {_seconds_sql(slide)}]" if slide else "]")
    if kind == "ROWS":
        return f"[ROWS {size}" + (f" SLIDE {slide}]" if slide else "]")
    if kind == "PARTITION":
        return f"[PARTITION BY {', '.join(generator.sql(key) for key in window.expressions)} ROWS {size}]"
    return f"[{kind}]"


def _source_sql(generator: SqlGenerator, source: Source) -> str:
    this = generator.sql(source, "this")
    if isinstance(source.this, (exp.Select, exp.Union)):
        this = f"({this})"
    window = f" {generator.sql(source, 'window')}" if source.args.get("window") else ""
    alias = f" AS {generator.sql(source.args['alias'])}" if source.args.get("alias") else ""
    return f"{this}{window}{alias}"


def _register_sql(generator: SqlGenerator, register: Register) -> str:
    head = f"REGISTER {register.args['kind']} {generator.sql(register, 'this')}"
    if register.args.get("query"):
        return f"{head} AS {generator.sql(register, 'query')}"
    columns = ", ".join(generator.sql(column) for column in register.expressions)
    data, timestamp = register.args.get("data"), register.args.get("timestamp")
    quoted = "" if data is None else " FROM '" + data.replace("'", "''") + "'"
    by = f" TIMESTAMP BY {generator.sql(timestamp)}" if timestamp else ""
    by += f" SIGN BY {generator.sql(register, 'sign')}" if register.args.get("sign") else ""
    keys = register.args.get("keys") or ()
    by += f" KEY BY {', '.join(generator.sql(key) for key in keys)}" if keys else ""
    return f"{head} ({columns}){quoted}{by}"


class CqlGenerator(SqlGenerator):
    """Queries in one form, for `explain`."""

    TRANSFORMS = {
        **SqlGenerator.TRANSFORMS,
        StreamWindow: _window_sql,
        Source: _source_sql,
        ToStream: lambda self, e: f"{e.args['kind']}({self.sql(e, 'this')})",
        WholeDiv: lambda self, e: self.binary(e, "/"),
        Register: _register_sql,
        RegisteredColumn: lambda self, e: f"{self.sql(e, 'this')} {e.args['type'].upper()}",
    }
