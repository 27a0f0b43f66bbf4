"""CQL as a dialect of sqlglot: text to statements and back. The grammar is in `parser`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.tokens import Token
from sqlglot.tokens import Tokenizer as SqlTokenizer

from penstock.cql.errors import CqlError, Place
from penstock.cql.language.generator import CqlGenerator
from penstock.cql.language.parser import CqlParser


class Cql(Dialect):
    """The dialect; call `parse` to use it."""

    class Tokenizer(SqlTokenizer):
        QUOTES = ["'"]
        IDENTIFIERS = ['"', "`"]
        COMMENTS = ["--", ("/*", "*/")]
        COMMANDS = set()
        # keywords of several words are left out: PARTITION BY is two words
        KEYWORDS = {word: token for word, token in SqlTokenizer.KEYWORDS.items() if " " not in word}

    Parser = CqlParser
    Generator = CqlGenerator


def parse(text: str) -> list[exp.Expr]:
    """The statements of a text.

    Raises:
        CqlError: The text is not CQL.
    """
    return _parsed(text, lambda parser, tokens: parser.parse(tokens, text))


def parse_scalar(text: str) -> exp.Expr:
    """An expression that stands alone, such as `celsius * 2`.

    Raises:
        CqlError: The text is no expression.
    """

    def whole(parser: Any, tokens: list[Token]) -> list[exp.Expr | None]:
        found: list[exp.Expr | None] = parser._parse(lambda self: self._cql_scalar("here"), tokens, text)
        return found

    made = _parsed(text, whole)
    if len(made) != 1:
        raise CqlError("an expression", f"{len(made)} of them", "a column or a number", text)
    return made[0]


def _parsed(text: str, run: Callable[[Any, list[Token]], list[exp.Expr | None]]) -> list[exp.Expr]:
    dialect = Dialect.get_or_raise(Cql)
    try:
        tokens = dialect.tokenize(text)
        parser = dialect.parser(error_level=ErrorLevel.IMMEDIATE, error_message_context=len(text))
        return [statement for statement in run(parser, tokens) if statement is not None]
    except TokenError as error:
        raise CqlError("quotes and comments are closed", str(error), "look for a ' or /*", text) from error
    except ParseError as error:
        raise _of_sqlglot(error, text) from error
    except RecursionError as error:
        raise CqlError("expressions are not nested deeply", "too many", "use REGISTER VIEW", text) from error


def _of_sqlglot(error: ParseError, text: str) -> CqlError:
    """An error of sqlglot about an expression, as an error of CQL."""
    found = error.errors[0] if error.errors else {}
    start = len(found.get("start_context") or "")
    highlight = found.get("highlight") or ""
    rule = str(found.get("description") or error).rstrip(".")
    return CqlError(
        f"an expression ({rule})",
        repr(highlight) if highlight else "the end of the statement",
        "a column, a number, a call such as avg(value), or a comparison",
        text,
        Place(start, start + max(1, len(highlight))),
    )


def to_text(node: exp.Expr) -> str:
    """A statement or an expression as CQL text."""
    return node.sql(dialect=Cql)
