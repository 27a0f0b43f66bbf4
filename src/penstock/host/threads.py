"""Work in a thread of its own: calls of a log or a disk may hang, and must not take others with them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *given: Any) -> T:
    """What some work gives, done in a new thread that does not keep the process alive.

    A pool has a few threads: once these hang, everybody's work would wait, and so would the process's end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(value: T | None, error: BaseException | None) -> None:
        if done.done():  # nobody waits any more
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, failed = None, None
        try:
            value = work(*given)
        except BaseException as error:  # it is for whoever waits
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, value, failed)

    threading.Thread(target=run, name=f"penstock-{getattr(work, '__name__', 'work')}", daemon=True).start()
    return await done
