"""Errors of Spark or of a user's function in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from penstock.vocabulary.errors import InvalidInputError, PenstockError


@contextmanager
def errors_in_one_line(rule: str) -> Iterator[None]:
    """Turns an error of Spark or of a user's function into an error of one line."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise InvalidInputError(rule, one_line(error), "try it in a plain Spark session") from error


def one_line(error: BaseException) -> str:
    """The first line of an exception's text, because Spark's messages go on for pages."""
    text = str(error)
    if isinstance(error, PySparkException):
        text = error.getMessage() or text
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    name = "" if isinstance(error, PySparkException) else f"{type(error).__name__}: "
    return f"{name}{first}"[:300]
