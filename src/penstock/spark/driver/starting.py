"""Starts queries one after the other, each once the query before it has asked for rows.

Spark gives the Python process of a query's source ten seconds to connect; no setting changes that. Processes
that are started together, or beside running queries, share the cores. They are late, and their queries end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql.streaming import StreamingQuery

from penstock.host.client import ControlClient
from penstock.spark.driver.catalyst import is_starting, sources_of
from penstock.vocabulary.errors import PenstockError, UnmetError, expected
from penstock.vocabulary.status import Status

LATE = "Python worker failed to connect back"
"""Part of Spark's message when it gives up."""
START_TRIES = 4
FIRST_PAUSE_S = 1.0
"""Pause before the second try; the pause doubles before each further try."""
ASK_TIMEOUT_S = 180.0
"""A query that takes longer to ask for rows is broken."""
LOOK_EVERY_S = 0.05

Condition = Callable[[], bool]


def start_in_turn(
    start: Callable[[], StreamingQuery],
    tell: Callable[[str], None] | None = None,
    *,
    asks: Callable[[StreamingQuery], Condition] | None = None,
    forget: Callable[[StreamingQuery], None] | None = None,
    timer: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> StreamingQuery:
    """Starts a query and waits until it has asked for rows, so that the next query may be started.

    A query whose Python process was too late for Spark is started again, after a pause.

    Args:
        start: Starts the query, each time it is called.
        tell: Called with a line for people when the query is started again.
        asks: Gives, for a query, the condition that it has asked.
        forget: Removes what a failed start has left.
        timer: Seconds that never go back.
        pause: Waits for a number of seconds.

    Returns:
        The query. It has asked, or it has ended; `exception()` says why.

    Raises:
        PenstockError: The query neither asks nor ends.
    """
    for tried in range(1, START_TRIES + 1):
        query = start()
        await_question(query, ASK_TIMEOUT_S, asks, timer, pause)
        if tried == START_TRIES or not was_late(query):
            break
        if tell is not None:
            tell(
                f"query {query.name}: its Python process did not connect within Spark's 10 s; "
                f"starting it again, {tried + 1} of {START_TRIES}"
            )
        (forget or _forget)(query)
        pause(FIRST_PAUSE_S * 2 ** (tried - 1))
    return query


def was_late(query: StreamingQuery) -> bool:
    """Whether Spark gave up on a query before its first batch, because its process had not connected."""
    return not query.isActive and query.lastProgress is None and LATE in str(query.exception())


def too_late(name: str) -> str:
    """The error text for a query on which Spark gave up every time."""
    return expected(
        f"the Python process of query {name} connects within Spark's 10 s",
        f"{START_TRIES} tries in which the process did not connect",
        "is the machine too busy, or PYSPARK_PYTHON a Python without pyarrow?",
    )


def await_question(
    query: StreamingQuery,
    timeout_s: float,
    asks: Callable[[StreamingQuery], Condition] | None = None,
    timer: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until a query has asked for rows, or has ended.

    Raises:
        PenstockError: The query does neither in time.
    """
    asked, deadline_s = (asks or has_asked)(query), timer() + timeout_s
    while query.isActive and not asked():
        if timer() >= deadline_s:
            raise UnmetError(
                f"query {query.name} asks for rows within {timeout_s:g} s",
                query.status["message"],
                "try the query alone, or in a plain Spark session",
            )
        pause(LOOK_EVERY_S)


def has_asked(query: StreamingQuery) -> Condition:
    """The condition that a query has asked for rows at least once.

    For a governed query, its control plane knows that. If the control plane is silent, and for other queries,
    Spark's own state must do.
    """
    governed = {source.token: source.address for source in sources_of(query) if source.governed}

    def asked() -> bool:
        if is_starting(query):
            return False
        if governed:
            return all(_joined(address, token) for token, address in governed.items())
        message = query.status["message"]
        return query.lastProgress is not None or not message.startswith(("Initializing", "Getting offsets"))

    return asked


def not_ready(status: Status, wanted: Mapping[str, int], new: Collection[str]) -> list[str]:
    """Queries that do not ask for rows yet.

    Args:
        status: Status of the driver's own queries, see `own_status`.
        wanted: Number of sources, by query.
        new: Queries that begin with an empty batch; that batch must have ended.
    """
    readers, idle = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, True)
    for query in (query for cls in status.classes.values() for query in cls.queries.values()):
        if (name := query.name) in wanted:
            readers[name] += len(query.readers)
            idle[name] &= not query.running and (query.batches > 0 or name not in new)
    return sorted(name for name in wanted if readers[name] < wanted[name] or not idle[name])


def _joined(address: str, token: str) -> bool:
    """Whether a control plane knows a reader, which has then asked; True if the control plane is silent."""
    client = ControlClient(address)
    try:
        return token in client.request({"op": "joined"})["joined"]
    except PenstockError:
        return True  # the source goes on by itself
    finally:
        client.close()


def _forget(query: StreamingQuery) -> None:
    """Removes an empty folder of offsets; a sink that cannot go on would take it for offsets of batches."""
    root = urlsplit(str(query._jsq.streamingQuery().resolvedCheckpointRoot()))
    if root.scheme in ("", "file"):
        with suppress(OSError):
            (Path(unquote(root.path)) / "offsets").rmdir()
