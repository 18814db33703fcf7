"""Which event loop this is, and what is known of event loops where there may be none.

A batcher belongs to the event loop that opened it. Nearly always a thread has one, but not always:
trio's guest mode runs trio and a host's loop by turns in one thread, and code that is called in one
loop may run another inside. So a loop is known by two things (`EventLoop`): the run of trio whose
task runs now, and the loop of asyncio that runs now. A run of trio that is a guest of asyncio has
its host beside it, always the same one, and the host's own tasks have no run of trio.

A worker process of plain code needs neither trio nor asyncio, a program on asyncio no trio, and to
load them takes longer than all the rest of a start. So nothing here loads them: code that runs in a
loop finds it loaded.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import CancelledError as ConcurrentCancelled
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    import trio

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

_mark: Callable[[Any], object] | None = None
_to_mark: Final[list[Callable[..., Any]]] = []


def holds_ctrl_c(function: F) -> F:
    """Marks a function whose callees are not ended by Ctrl-C; trio then gives it to the main task.

    So a KeyboardInterrupt that comes out of them was raised by the code itself.
    """
    _to_mark.append(function)
    if _mark is not None:
        mark_what_holds_ctrl_c(_mark)
    return function


def mark_what_holds_ctrl_c(mark: Callable[[Any], object]) -> None:
    """Hears how trio is told of such functions, before one is called in it."""
    global _mark
    _mark = mark
    with suppress(IndexError):  # all are marked, by this thread or another
        while True:
            mark(_to_mark.pop())


def _if_loaded(module: str, name: str) -> Any:
    """Returns what is in a module; None if it is not loaded, or not yet so far."""
    return getattr(sys.modules.get(module), name, None)


def in_trio_task() -> bool:
    """Says whether a task of trio runs the caller."""
    ask = _if_loaded("trio.lowlevel", "in_trio_task")
    return ask is not None and ask()


def running_asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Returns the loop of asyncio that runs in this thread; None if none does."""
    ask = _if_loaded("asyncio.events", "_get_running_loop")
    return None if ask is None else ask()


def cancellations() -> tuple[type[BaseException], ...]:
    """Returns what either event loop tells a task that is cancelled."""
    told = _if_loaded("asyncio.exceptions", "CancelledError"), _if_loaded("trio", "Cancelled")
    return tuple(each for each in told if each is not None)


def loop_ended() -> tuple[type[BaseException], ...]:
    """Returns what a thread meets that waits for an event loop which ends."""
    met = _if_loaded("trio", "RunFinishedError"), _if_loaded("trio", "Cancelled")
    return ConcurrentCancelled, *(each for each in met if each is not None)


class EventLoop(NamedTuple):
    """An event loop, or none where both are None; two are equal if they are the same one.

    Attributes:
        trio_run: What trio knows the run by whose task runs now.
        loop: The loop of asyncio that runs now.
    """

    trio_run: trio.lowlevel.TrioToken | None
    loop: asyncio.AbstractEventLoop | None

    @classmethod
    def here(cls) -> EventLoop:
        """Returns the event loop that runs the caller."""
        run = sys.modules["trio.lowlevel"].current_trio_token() if in_trio_task() else None
        return cls(run, running_asyncio_loop())

    @staticmethod
    def is_in_thread() -> bool:
        """Says whether an event loop runs in this thread, also where none of its tasks does."""
        in_trio_run = _if_loaded("trio.lowlevel", "in_trio_run")
        return (in_trio_run is not None and in_trio_run()) or running_asyncio_loop() is not None

    @property
    def is_here(self) -> bool:
        """Whether it runs the caller."""
        return EventLoop.here() == self

    @property
    def is_none(self) -> bool:
        """Whether there is no event loop."""
        return self.trio_run is None and self.loop is None

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs an async function in it, for a thread that has no event loop, and waits for it.

        Raises:
            RuntimeError: It has ended.
            Exception: What the function raised.
        """
        if self.trio_run is not None:
            result: T = sys.modules["trio"].from_thread.run(function, trio_token=self.trio_run)
            return result
        assert self.loop is not None
        call = function()
        try:
            future: Future[T] = sys.modules["asyncio"].run_coroutine_threadsafe(call, self.loop)
        except RuntimeError:
            call.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, function: Callable[[], None]) -> None:
        """Has it call a function soon, for any thread; not if it has ended."""
        with suppress(RuntimeError):
            if self.trio_run is not None:
                self.trio_run.run_sync_soon(function)
            elif self.loop is not None:
                self.loop.call_soon_threadsafe(function)

    def described(self) -> str:
        """Says which one it is, in words; to be asked in its thread."""
        where = f"thread {threading.current_thread().name!r}"
        # In a turn of a guest no task of its host runs; in a loop inside a run of trio one does.
        is_guest = self.loop is not None and sys.modules["asyncio"].current_task(self.loop) is None
        if self.trio_run is not None and (self.loop is None or is_guest):
            return f"trio's run {id(self.trio_run):#x} in {where}"
        if self.loop is not None:
            return f"asyncio's loop {id(self.loop):#x} in {where}"
        return f"{where}, which runs no event loop"
