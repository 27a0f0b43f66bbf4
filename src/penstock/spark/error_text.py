"""What Spark or a user's function raises, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from penstock.vocabulary.errors import InvalidInputError, PenstockError


@contextmanager
def told(rule: str) -> Iterator[None]:
    """Turns what Spark or a user's function raises into one line."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise InvalidInputError(rule, one_line(error), "try it in a plain Spark session") from error


def one_line(error: BaseException) -> str:
    """The gist of an exception: Spark's messages go on for pages."""
    text = str(error)
    if isinstance(error, PySparkException):
        text = error.getMessage() or text
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    name = "" if isinstance(error, PySparkException) else f"{type(error).__name__}: "
    return f"{name}{first}"[:300]
