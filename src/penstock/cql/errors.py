"""Errors of CQL: where in the text, what was expected, what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.vocabulary.errors import PenstockError, expected


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text: offsets of the first character and of the character after the last."""

    start: int
    end: int

    def line_and_column(self, text: str) -> tuple[int, int]:
        """Line and column of the place, both counted from 1."""
        before = text[: self.start]
        return before.count("\n") + 1, self.start - (before.rfind("\n") + 1) + 1


class CqlError(PenstockError):
    """A text that is no query of CQL, or one that cannot run.

    Args:
        rule: What was expected, as a sentence without its full stop.
        got: What the text has instead.
        hint: What to do instead.
        text: The whole text.
        place: Place of the error in the text.
        file: Name of the file, for the message.
    """

    def __init__(
        self, rule: str, got: str, hint: str, text: str = "", place: Place | None = None, file: str = ""
    ) -> None:
        self.rule, self.got, self.hint, self.text, self.place = rule, got, hint, text, place
        self.sentence, self.shown, self.where = expected(rule, got, hint), "", ""
        if place is not None:
            line, column = place.line_and_column(text)
            self.where = f"{file}:{line}:{column}:" if file else f"line {line}, column {column}:"
            self.sentence, self.shown = f"{self.where} {self.sentence}", caret(text, place)
        super().__init__(f"{self.sentence}\n{self.shown}" if self.shown else self.sentence)

    def of_file(self, file: str) -> CqlError:
        """The same error with the name of its file."""
        return CqlError(self.rule, self.got, self.hint, self.text, self.place, file)


def caret(text: str, place: Place) -> str:
    """The line of a place, with carets below the place."""
    line, column = place.line_and_column(text)
    shown = text.split("\n")[line - 1]
    length = max(1, min(place.end - place.start, len(shown) - column + 1))
    # tabs stay tabs, so that the carets are below the right characters
    indent = "".join(c if c == "\t" else " " for c in shown[: column - 1])
    return f"  {shown}\n  {indent}{'^' * length}"
