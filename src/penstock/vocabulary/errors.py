"""Errors that say what was expected, what was got, and a hint. Every one is a `PenstockError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PenstockError(Exception):
    """Base class of everything Penstock raises on purpose."""


def expected(rule: str, got: object, hint: str) -> str:
    """The text of an error, in one line."""
    return f"expected: {rule}; got: {got}; hint: {hint}"


class UnmetError(PenstockError):
    """Something did not go as expected, but not because of a value that somebody gave.

    Args:
        rule: What was expected, as a sentence without its full stop.
        got: What happened instead.
        hint: What to do about it.
    """

    def __init__(self, rule: str, got: object, hint: str) -> None:
        self.rule, self.got, self.hint = rule, got, hint
        super().__init__(expected(rule, got, hint))


class InvalidInputError(PenstockError):
    """A value broke a rule.

    Args:
        rule: The rule, as a sentence without its full stop.
        got: The value that broke it.
        hint: What to do instead.
    """

    def __init__(self, rule: str, got: object, hint: str) -> None:
        self.rule, self.got, self.hint = rule, got, hint
        super().__init__(expected(rule, got, hint))


class RefusedError(InvalidInputError):
    """A running query is ended on purpose, because it cannot be governed as it is."""


class UnknownNameError(InvalidInputError):
    """A name is not among the known ones; the nearest is suggested."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"
        super().__init__(f"{kind} must be one of {', '.join(names)}", repr(name), hint)


class MissingExtraError(PenstockError):
    """A part of Penstock is used whose optional packages are not installed.

    Args:
        part: The part, as a user knows it.
        package: The package that could not be imported.
        extra: The extra of Penstock with the package.
    """

    def __init__(self, part: str, package: str, extra: str) -> None:
        self.rule = f"{part} needs the package {package!r}"
        self.got = "a Python without this package"
        self.hint = f"pip install 'penstock[{extra}]'"
        super().__init__(expected(self.rule, self.got, self.hint))


def require_positive(name: str, value: float, hint: str) -> None:
    """Rejects a value that is not a positive finite number."""
    if not 0 < value < float("inf"):
        raise InvalidInputError(f"{name} must be a positive number", value, hint)


def require_fraction(name: str, value: float, hint: str) -> None:
    """Rejects a value outside [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise InvalidInputError(f"{name} must lie between 0 and 1", value, hint)
