"""Work beside the loop, in threads of its own: calls of a log or a disk may hang, and must not take others
with them.
"""

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


def looked_at(done: asyncio.Future[Any]) -> None:
    """An error for which nobody waits any more is none that asyncio has to tell of."""
    if not done.cancelled():
        done.exception()


class Aside:
    """What a server has begun and does not wait for in its loop."""

    def __init__(self) -> None:
        self._stuck: set[str] = set()
        """Work in other threads that takes long, and is not begun again before it has ended."""
        self.tasks: set[asyncio.Task[None]] = set()
        """What was begun and has not ended."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins something that ends by itself, or with `end`."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def end(self) -> None:
        """Ends what was begun; threads go on, and do not keep the process alive."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def alone(self, name: str, work: Callable[..., None], *given: Any) -> None:
        """Does some work in another thread, unless it is still done since the last time."""
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
        """What some work gives; `None` while work of that name, begun before, has not ended.

        Raises:
            TimeoutError: It takes longer, and goes on.
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
