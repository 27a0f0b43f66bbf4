"""Runs work in threads beside the event loop: a call of a log or a disk that hangs must not stop the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)


async def in_thread(work: Callable[..., T], *given: Any) -> T:
    """Runs some work in a new daemon thread, and returns its result.

    A thread pool would not do. It has few threads: once all of them hang, all other work waits, and the
    process cannot end.
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


def looked_at(done: asyncio.Future[Any]) -> None:
    """Marks the error of some work as seen, so that asyncio does not log it if nobody waits for the work."""
    if not done.cancelled():
        done.exception()


class Aside:
    """Work that a server has started beside its loop."""

    def __init__(self) -> None:
        self._stuck: set[str] = set()
        """Names of work that still runs in other threads. Work of such a name is not started again."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that were started and have not ended."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task. It ends by itself, or `end` cancels it."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def end(self) -> None:
        """Cancels all tasks. Threads go on, but do not keep the process alive."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def alone(self, name: str, work: Callable[..., None], *given: Any) -> None:
        """Starts some work in another thread, unless work of that name still runs."""
        if name not in self._stuck:
            self._stuck.add(name)
            self.start(self._do(name, work, *given))

    async def _do(self, name: str, work: Callable[..., None], *given: Any) -> None:
        try:
            await in_thread(work, *given)
        except OSError as error:
            _log.warning("%s: not done; decisions go on: %s", name, error)
        except Exception:
            _log.exception("%s: not done; decisions go on", name)
        finally:
            self._stuck.discard(name)

    async def within(self, seconds: float, name: str, work: Callable[..., T], *given: Any) -> T | None:
        """Runs some work in another thread, and returns its result.

        Returns:
            The result; `None` if work of that name, started earlier, still runs.

        Raises:
            TimeoutError: The work takes longer than `seconds`. Its thread goes on.
        """
        if name in self._stuck:
            return None
        doing = asyncio.ensure_future(in_thread(work, *given))
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(doing)
        except TimeoutError:
            self._stuck.add(name)
            doing.add_done_callback(lambda _: self._stuck.discard(name))
            doing.add_done_callback(looked_at)
            raise
