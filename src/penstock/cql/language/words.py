"""Words of CQL: units of time, words that are no names, and hints for words that CQL does not have."""

from __future__ import annotations

from decimal import Decimal

from sqlglot.tokens import Token, TokenType

UNITS_S = {
    **dict.fromkeys(("MICROSECOND", "MICROSECONDS", "US"), Decimal("0.000001")),
    **dict.fromkeys(("MILLISECOND", "MILLISECONDS", "MS"), Decimal("0.001")),
    **dict.fromkeys(("SECOND", "SECONDS", "SEC", "SECS", "S"), Decimal(1)),
    **dict.fromkeys(("MINUTE", "MINUTES", "MIN", "MINS"), Decimal(60)),
    **dict.fromkeys(("HOUR", "HOURS", "H"), Decimal(3600)),
    **dict.fromkeys(("DAY", "DAYS", "D"), Decimal(86400)),
}
"""Seconds in a unit of time."""
LARGEST_S = Decimal(10**9)
"""Longest window, in seconds: thirty years."""
CLAUSES = ("WHERE", "GROUP", "HAVING", "UNION", "JOIN", "INNER", "ON", "FROM", "SELECT", "AS")
NOT_ALIASES = frozenset({*CLAUSES, "ORDER", "LIMIT", "LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "TIMESTAMP"})
"""Words that are not an alias if they follow a source."""
EXAMPLES = {
    "BY": "GROUP BY device, PARTITION BY device, TIMESTAMP BY at, SIGN BY op or KEY BY id",
    "AS": "REGISTER VIEW hot AS SELECT ...",
    "ON": "a JOIN b ON a.k = b.k",
    "ROWS": "[PARTITION BY device ROWS 1]",
}


def is_name(token: Token) -> bool:
    text = token.text
    return token.token_type == TokenType.IDENTIFIER or (
        token.token_type not in (TokenType.STRING, TokenType.NUMBER) and text.isidentifier()
    )


def after(word: str) -> str:
    if word in ("ORDER", "LIMIT"):
        return "an answer has no order; the largest ones are TOP5(id, value)"
    if word == "[":
        return "a window stands behind a name or a query in FROM"
    return "clauses are WHERE, GROUP BY, HAVING and UNION, in this order"
