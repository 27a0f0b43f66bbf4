"""The parser of CQL, on sqlglot's.

    statement := REGISTER STREAM name ( column type, ... ) [FROM 'data'] [TIMESTAMP BY column]
               | REGISTER RELATION name ( column type, ... ) [FROM 'data'] [TIMESTAMP BY column]
                                                             [SIGN BY column] [KEY BY column, ...]
               | REGISTER {STREAM | RELATION | VIEW | QUERY} name AS query
               | query
    query     := term { UNION [ALL] term }
    term      := {ISTREAM | DSTREAM | RSTREAM} ( query )  |  ( query )  |  select
    select    := SELECT [DISTINCT] item, ... FROM source { , source | [INNER] JOIN source ON condition }
                 [WHERE condition] [GROUP BY expression, ...] [HAVING condition]
    source    := { name | ( query ) | {ISTREAM | DSTREAM | RSTREAM} ( query ) } [window] [[AS] alias]
    window    := [NOW] | [UNBOUNDED] | [RANGE UNBOUNDED] | [ROWS UNBOUNDED]
               | [RANGE number unit [SLIDE number unit]] | [ROWS number [SLIDE number]]
               | [PARTITION BY column, ... ROWS number]

Statements and queries are parsed here, so that an error can say what is expected; expressions of items and
conditions are sqlglot's.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn, TypeVar

from sqlglot import exp
from sqlglot.parser import Parser as SqlParser
from sqlglot.tokens import Token, TokenType

from penstock.cql.errors import CqlError, Place
from penstock.cql.language.nodes import TO_STREAM, Register, RegisteredColumn, Source, StreamWindow, ToStream
from penstock.cql.language.words import CLAUSES, EXAMPLES, LARGEST_S, NOT_ALIASES, UNITS_S, after, is_name

DEEPEST = 40
"""Most levels of nested parentheses and queries."""

T = TypeVar("T")


class CqlParser(SqlParser):
    """Statements and queries by hand, expressions by sqlglot."""

    _cql_depth = 0

    # -- what comes next --------------------------------------------------------------------

    def _cql_word(self) -> str:
        """The word that comes next, in upper letters; empty at the end and for a quoted name."""
        if not self._curr or self._curr.token_type in (TokenType.IDENTIFIER, TokenType.STRING):
            return ""
        return self._curr.text.upper()

    def _cql_take(self, *words: str) -> bool:
        """Steps over these words if all of them come next."""
        index = self._index
        for word in words:
            if self._cql_word() != word:
                self._retreat(index)
                return False
            self._advance()
        return True

    def _cql_expect(self, word: str, where: str) -> None:
        if not self._cql_take(word):
            self._cql_refuse(f"{word} {where}", f"for example {EXAMPLES.get(word, word)}")

    def _cql_refuse(self, rule: str, hint: str, token: Token | None = None) -> NoReturn:
        token = token or (self._curr or None)
        got = f"{token.text!r}" if token else "the end of the statement"
        raise CqlError(rule, got, hint, self.sql, self._cql_place(token))

    def _cql_place(self, token: Token | None) -> Place:
        if token:
            return Place(token.start, token.end + 1)
        end = len(self.sql.rstrip()) if not self._prev else self._prev.end + 1
        return Place(end, end + 1)

    def _cql_nested(self, parse: Callable[[], T]) -> T:
        """Parses the content of parentheses whose opening one has been read."""
        self._cql_depth += 1
        if self._cql_depth > DEEPEST:
            self._cql_refuse(f"at most {DEEPEST} queries are inside each other", "use REGISTER VIEW")
        made = parse()
        self._cql_depth -= 1
        if not self._match(TokenType.R_PAREN):
            self._cql_refuse("a ) after the query", "one for each (")
        return made

    def _cql_at(self, node: exp.Expr, token: Token) -> Any:
        node.meta["place"] = Place(token.start, (self._prev or token).end + 1)
        return node

    def _cql_name(self, of: str, hint: str) -> exp.Identifier:
        token = self._curr
        if not token or token.token_type == TokenType.STRING or not is_name(token):
            self._cql_refuse(f"a name {of}", hint)
        self._advance()
        quoted = token.token_type == TokenType.IDENTIFIER
        return self._cql_at(exp.Identifier(this=token.text, quoted=quoted), token)

    # -- statements -------------------------------------------------------------------------

    def _parse_statement(self) -> exp.Expr | None:
        self._cql_depth = 0
        if not self._curr:
            return None
        token = self._curr
        if self._cql_take("REGISTER"):
            return self._cql_at(self._cql_register(), token)
        if self._cql_word() not in ("SELECT", *TO_STREAM) and token.token_type != TokenType.L_PAREN:
            self._cql_refuse(
                "a statement begins with SELECT, ISTREAM(, DSTREAM(, RSTREAM( or REGISTER",
                "for example SELECT * FROM readings [RANGE 10 SECONDS]",
            )
        query = self._cql_query()
        if self._curr:
            self._cql_refuse("a clause of the query or a ;", after(self._cql_word()))
        return query

    def _cql_register(self) -> exp.Expr:
        kind = self._cql_word()
        if kind not in ("STREAM", "RELATION", "VIEW", "QUERY"):
            self._cql_refuse(
                "STREAM, RELATION, VIEW or QUERY after REGISTER",
                "REGISTER STREAM readings (device int, value float)",
            )
        self._advance()
        name = self._cql_name(f"after REGISTER {kind}", f"REGISTER {kind} hot ...")
        if self._cql_take("AS"):
            query = self._cql_query()
            if self._curr:
                self._cql_refuse("a clause of the query or a ;", after(self._cql_word()))
            return Register(this=name, kind=kind, query=query)
        if kind not in ("STREAM", "RELATION"):
            self._cql_expect("AS", f"after the name of a {kind.lower()}")
        if not self._match(TokenType.L_PAREN):
            self._cql_refuse(
                f"( with columns, or AS with a query, after the name of a {kind.lower()}",
                f"REGISTER {kind} readings (device int, value float)",
            )
        columns = [self._cql_registered_column()]
        while self._match(TokenType.COMMA):
            columns.append(self._cql_registered_column())
        if not self._match(TokenType.R_PAREN):
            self._cql_refuse("a , or a ) after a column", "(device int, value float)")
        where = self._cql_where_from(kind == "RELATION")
        return Register(this=name, kind=kind, expressions=columns, **where)

    def _cql_where_from(self, relation: bool) -> dict[str, Any]:
        """The clauses after the columns of a stream, or of a relation."""
        found: dict[str, Any] = {}
        if self._cql_take("FROM"):
            if not self._curr or self._curr.token_type != TokenType.STRING:
                self._cql_refuse("a text in quotes after FROM", "FROM 'S1'")
            found["data"] = self._curr.text
            self._advance()
        if self._cql_take("TIMESTAMP"):
            self._cql_expect("BY", "after TIMESTAMP")
            found["timestamp"] = self._cql_name("after TIMESTAMP BY", "the column with a row's time")
        if relation and self._cql_take("SIGN"):
            self._cql_expect("BY", "after SIGN")
            found["sign"] = self._cql_name("after SIGN BY", "the column with + or -")
        if relation and self._cql_take("KEY"):
            self._cql_expect("BY", "after KEY")
            found["keys"] = [self._cql_name("after KEY BY", "the column that tells tuples apart")]
            while self._match(TokenType.COMMA):
                found["keys"].append(self._cql_name("after KEY BY", "the columns that tell tuples apart"))
        if self._curr:
            clauses = "FROM 'data', TIMESTAMP BY column"
            clauses += ", SIGN BY column, KEY BY columns" if relation else ""
            self._cql_refuse(f"{clauses} or a ;", "one statement a ;, clauses in this order")
        return found

    def _cql_registered_column(self) -> exp.Expr:
        token = self._curr
        name = self._cql_name("for a column", "(device int, value float)")
        type_token = self._curr
        type_name = self._cql_name("for the type of a column", "int, float, char(4), timestamp, ...")
        type_text = type_name.name
        if self._match(TokenType.L_PAREN):
            numbers = [self._cql_whole("in the type of a column", 1)]
            while self._match(TokenType.COMMA):
                numbers.append(self._cql_whole("in the type of a column", 0))
            if not self._match(TokenType.R_PAREN):
                self._cql_refuse("a ) after the size of a type", "char(4)")
            type_text += f"({','.join(str(number) for number in numbers)})"
        assert token
        assert type_token
        made = RegisteredColumn(this=name, type=type_text)
        made.meta["type_place"] = Place(type_token.start, self._prev.end + 1)
        return self._cql_at(made, token)

    # -- queries ----------------------------------------------------------------------------

    def _cql_query(self) -> exp.Expr:
        token = self._curr
        query = self._cql_term()
        while self._cql_take("UNION"):
            distinct = not self._cql_take("ALL")
            right = self._cql_term()
            query = self._cql_at(exp.Union(this=query, expression=right, distinct=distinct), token)
        return query

    def _cql_term(self) -> exp.Expr:
        token = self._curr
        if self._match(TokenType.L_PAREN):
            return self._cql_nested(self._cql_query)
        if self._cql_word() in TO_STREAM:
            return self._cql_to_stream()
        if self._cql_word() != "SELECT":
            self._cql_refuse("a query", "it begins with SELECT, ISTREAM(, DSTREAM(, RSTREAM( or a (")
        self._advance()
        distinct = self._cql_take("DISTINCT")
        items = [self._cql_item()]
        while self._match(TokenType.COMMA):
            items.append(self._cql_item())
        if self._cql_word() != "FROM":
            self._cql_refuse("a , or FROM after what is selected", "SELECT a, b FROM readings")
        self._advance()
        select = exp.Select(expressions=items, distinct=exp.Distinct() if distinct else None)
        select.set("from_", exp.From(this=self._cql_source()))
        while join := self._cql_join():
            select.append("joins", join)
        if self._cql_take("WHERE"):
            select.set("where", exp.Where(this=self._cql_condition("after WHERE")))
        if self._cql_take("GROUP"):
            self._cql_expect("BY", "after GROUP")
            keys = [self._cql_scalar("after GROUP BY")]
            while self._match(TokenType.COMMA):
                keys.append(self._cql_scalar("after GROUP BY"))
            select.set("group", exp.Group(expressions=keys))
        if self._cql_take("HAVING"):
            select.set("having", exp.Having(this=self._cql_condition("after HAVING")))
        return self._cql_at(select, token)

    def _cql_to_stream(self) -> exp.Expr:
        token, kind = self._curr, self._cql_word()
        self._advance()
        if not self._match(TokenType.L_PAREN):
            self._cql_refuse(f"a ( with a query after {kind}", f"{kind}(SELECT ...)")
        return self._cql_at(ToStream(this=self._cql_nested(self._cql_query), kind=kind), token)

    def _cql_join(self) -> exp.Expr | None:
        token = self._curr
        if self._match(TokenType.COMMA):
            return self._cql_at(exp.Join(this=self._cql_source()), token)
        if self._cql_word() in ("LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "NATURAL"):
            self._cql_refuse(
                "streams are joined by a , or by [INNER] JOIN ... ON",
                "an outer join takes back rows that it has given; join inside, and union the rest",
            )
        if self._cql_take("INNER"):
            if self._cql_word() != "JOIN":
                self._cql_refuse("JOIN after INNER", "a INNER JOIN b ON a.k = b.k")
        elif self._cql_word() != "JOIN":
            return None
        self._advance()
        source = self._cql_source()
        self._cql_expect("ON", "after what is joined")
        return self._cql_at(exp.Join(this=source, on=self._cql_condition("after ON")), token)

    def _cql_source(self) -> exp.Expr:
        token = self._curr
        if self._match(TokenType.L_PAREN):
            this: exp.Expr = self._cql_nested(self._cql_query)
        elif self._cql_word() in TO_STREAM and self._next and self._next.token_type == TokenType.L_PAREN:
            this = self._cql_to_stream()
        else:
            this = self._cql_name("of a stream, relation or view", "FROM readings [RANGE 10 SECONDS]")
        window = self._cql_window() if self._match(TokenType.L_BRACKET) else None
        alias = None
        if self._cql_take("AS") or (
            self._curr and is_name(self._curr) and self._cql_word() not in NOT_ALIASES
        ):
            alias = self._cql_name("after AS", "FROM readings AS r")
        return self._cql_at(Source(this=this, window=window, alias=alias), token)

    def _cql_window(self) -> exp.Expr:
        token = self._prev
        window = self._cql_inside_window()
        if not self._match(TokenType.R_BRACKET):
            self._cql_refuse("a ] after the window", "[RANGE 10 SECONDS SLIDE 5 SECONDS]")
        return self._cql_at(window, token)

    def _cql_inside_window(self) -> StreamWindow:
        if self._cql_take("NOW"):
            return StreamWindow(this="NOW")
        if (
            self._cql_take("UNBOUNDED")
            or self._cql_take("RANGE", "UNBOUNDED")
            or self._cql_take("ROWS", "UNBOUNDED")
        ):
            return StreamWindow(this="UNBOUNDED")
        if self._cql_take("RANGE"):
            size = self._cql_seconds("after RANGE", zero=True)
            slide = self._cql_seconds("after SLIDE") if self._cql_take("SLIDE") else None
            return StreamWindow(this="RANGE", size=size, slide=slide)
        if self._cql_take("ROWS"):
            rows = self._cql_whole("after ROWS", 1)
            step = self._cql_whole("after SLIDE", 1) if self._cql_take("SLIDE") else None
            return StreamWindow(this="ROWS", size=rows, slide=step)
        if self._cql_take("PARTITION"):
            self._cql_expect("BY", "after PARTITION")
            keys = [self._cql_key()]
            while self._match(TokenType.COMMA):
                keys.append(self._cql_key())
            self._cql_expect("ROWS", "after the columns of PARTITION BY")
            return StreamWindow(this="PARTITION", expressions=keys, size=self._cql_whole("after ROWS", 1))
        return self._cql_refuse(
            "a window begins with NOW, UNBOUNDED, RANGE, ROWS or PARTITION BY",
            "[RANGE 10 SECONDS], [ROWS 5] or [PARTITION BY device ROWS 1]",
        )

    def _cql_key(self) -> exp.Identifier:
        return self._cql_name("after PARTITION BY", "[PARTITION BY device ROWS 1]")

    # -- numbers and expressions ------------------------------------------------------------

    def _cql_number(self, where: str) -> tuple[Decimal, Token]:
        negative = self._match(TokenType.DASH)
        token = self._curr
        if not token or token.token_type != TokenType.NUMBER:
            self._cql_refuse(f"a number {where}", "for example 10")
        self._advance()
        value = Decimal(token.text)
        return (-value if negative else value), token

    def _cql_whole(self, where: str, least: int) -> int:
        value, token = self._cql_number(where)
        if value != value.to_integral_value() or not least <= value <= 10**9:
            self._cql_refuse(f"a whole number of {least} or more {where}", "for example 5", token)
        return int(value)

    def _cql_seconds(self, where: str, zero: bool = False) -> Decimal:
        value, token = self._cql_number(where)
        unit = UNITS_S.get(self._cql_word())
        if unit is None:
            self._cql_refuse("a unit of time after the number", "seconds, minutes, hours, ms")
        self._advance()
        seconds = value * unit
        if not (seconds > 0 or (zero and seconds == 0)) or seconds > LARGEST_S:
            rule = "is not negative" if zero else "is more than zero"
            self._cql_refuse(f"the time {where} {rule}, and {LARGEST_S} seconds at most", "10 SECONDS", token)
        if seconds % UNITS_S["US"]:
            self._cql_refuse(f"the time {where} is in whole microseconds", "10 MS", token)
        return seconds

    def _cql_item(self) -> exp.Expr:
        item = self._cql_scalar("after SELECT")
        if self._cql_take("AS") or (
            self._curr and is_name(self._curr) and self._cql_word() not in NOT_ALIASES
        ):
            token = self._prev
            alias = self._cql_name("after AS", "SELECT avg(value) AS mean")
            return self._cql_at(exp.Alias(this=item, alias=alias), token)
        return item

    def _cql_condition(self, where: str) -> exp.Expr:
        return self._cql_scalar(where, "a condition")

    def _cql_scalar(self, where: str, what: str = "an expression") -> exp.Expr:
        token = self._curr
        if not token or self._cql_word() in CLAUSES:
            self._cql_refuse(f"{what} {where}", "a column, a number, or a call such as avg(value)")
        made = self._parse_assignment()
        if made is None:
            self._cql_refuse(f"{what} {where}", "a column, a number, or a call such as avg(value)", token)
        return self._cql_at(made, token)
