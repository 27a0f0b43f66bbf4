"""REGISTER statements: streams and relations with their columns, and queries with a name."""

from __future__ import annotations

from sqlglot import exp

from penstock.cql.errors import CqlError
from penstock.cql.language import nodes
from penstock.cql.meaning.bind import Binder
from penstock.cql.meaning.catalog import Catalog, RelationDef, StreamDef, ViewDef
from penstock.cql.meaning.naming import Naming
from penstock.cql.meaning.types import is_numeric, registered_type
from penstock.vocabulary.errors import InvalidInputError


def register(statement: nodes.Register, catalog: Catalog, text: str) -> None:
    """Adds the stream, relation or view of a REGISTER statement to a catalog.

    Raises:
        CqlError: The name is taken, or the statement has no meaning.
    """
    binder = Binder(catalog, text)
    name = statement.this.name
    if name in catalog:
        binder.refuse(statement.this, "a name is registered once", repr(name), "choose another name")
    query = statement.args.get("query")
    if query is None:
        catalog.add(Declared(statement, text).entry())
        return
    plan, kind = binder.query(query).plan, statement.args["kind"]
    if kind == "STREAM" and not plan.is_stream:
        binder.refuse(
            statement.this,
            "a stream is registered with a query that gives one",
            f"{name}, a relation",
            "REGISTER STREAM ... AS ISTREAM(...), or REGISTER RELATION",
        )
    if kind == "RELATION" and plan.is_stream:
        binder.refuse(
            statement.this,
            "a relation is registered with a query that gives one",
            f"{name}, a stream",
            "REGISTER STREAM ... AS ...",
        )
    catalog.add(ViewDef(name, kind, query, text))


class Declared(Naming):
    """A stream or relation as a statement declares it: its columns, and the roles of some of them."""

    def __init__(self, statement: nodes.Register, text: str) -> None:
        super().__init__(text)
        self._statement, self._what = statement, statement.args["kind"].lower()
        self._columns = self._typed()

    def entry(self) -> StreamDef:
        """The entry for the catalog.

        Raises:
            CqlError: The statement has no meaning.
        """
        name, data, time = self._statement.this.name, self._statement.args.get("data"), self._time()
        if self._what == "stream":
            return StreamDef(name, self._columns, data, time)
        sign = self._sign()
        made = RelationDef(name, self._columns, data, time, sign, self._keys(time, sign))
        if not made.tuple_columns:
            self.refuse(
                self._statement.this,
                "a relation has a column beside the time and the sign of its changes",
                f"{name}, without one",
                f"REGISTER RELATION {name} (id int, op char(1)) SIGN BY op",
            )
        return made

    def _typed(self) -> dict[str, str]:
        columns: dict[str, str] = {}
        for column in self._statement.expressions:
            name = column.this.name
            if name.lower() in (other.lower() for other in columns):
                self.refuse(column, f"a {self._what} has each column once", repr(name), "rename one of them")
            try:
                columns[name] = registered_type(column.args["type"])
            except InvalidInputError as error:
                place = column.meta["type_place"]
                raise CqlError(error.rule, str(error.got), error.hint, self._text, place) from error
        return columns

    def _column(self, node: exp.Expr, clause: str) -> str:
        """The column that a clause names, as it is registered."""
        for name in self._columns:
            if name.lower() == node.name.lower():
                return name
        rule = f"{clause} has one of the {self._what}'s columns"
        raise self.error(node, rule, repr(node.name), "add it")

    def _time(self) -> str | None:
        node = self._statement.args.get("timestamp")
        if node is None:
            return None
        time = self._column(node, "TIMESTAMP BY")
        kind = self._columns[time]
        if kind != "TIMESTAMP" and not is_numeric(kind):
            rule, got = "TIMESTAMP BY has times, or numbers of seconds", f"{time} of type {kind}"
            self.refuse(node, rule, got, f"{time} timestamp")
        return time

    def _sign(self) -> str | None:
        node = self._statement.args.get("sign")
        if node is None:
            return None
        sign = self._column(node, "SIGN BY")
        if self._columns[sign] != "STRING":
            got = f"{sign} of type {self._columns[sign]}"
            self.refuse(node, "SIGN BY has texts, + or -", got, f"{sign} char(1)")
        return sign

    def _keys(self, *taken: str | None) -> tuple[str, ...]:
        keys = []
        for node in self._statement.args.get("keys") or ():
            key = self._column(node, "KEY BY")
            if key in keys or key in taken:
                rule = "KEY BY has columns of the relation's tuples, each once"
                self.refuse(node, rule, repr(key), "not the time, nor the sign of a change")
            keys.append(key)
        return tuple(keys)
