"""Which event loop this is, and what is known of event loops where there may be none.

A batcher belongs to the event loop that opened it. Nearly always a thread has one, but not always:
trio's guest mode runs trio and a host's loop by turns in one thread, and code that is called in one
loop may run another inside. So a loop is known by two things (`EventLoop`): the run of trio whose
task runs now, and the loop of asyncio that runs now. A run of trio that is a guest of asyncio has
its host beside it, always the same one, and the host's own tasks have no run of trio.

A worker process of plain code needs neither trio nor asyncio, and loading them takes longer than
all the rest of its start. So they are not imported here: `parking`, without which no batcher is
opened, imports them and tells this file.
"""

from __future__ import annotations

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

_trio: Any = None
_asyncio: Any = None
_holding: Final[list[Callable[..., Any]]] = []


def are_loaded(trio: Any, asyncio: Any) -> None:
    """Hears that event loops may run from now on."""
    global _trio, _asyncio
    _asyncio = asyncio
    _trio = trio
    while _holding:
        holds_ctrl_c(_holding.pop())


def holds_ctrl_c(function: F) -> F:
    """Marks a function whose callees are not ended by Ctrl-C; trio then gives it to the main task.

    So a KeyboardInterrupt that comes out of them was raised by the code itself.
    """
    if _trio is None:
        _holding.append(function)
    else:
        _trio.lowlevel.enable_ki_protection(function)
    return function


def cancellations() -> tuple[type[BaseException], ...]:
    """Returns what either event loop tells a task that is cancelled."""
    return () if _trio is None else (_asyncio.CancelledError, _trio.Cancelled)


def loop_ended() -> tuple[type[BaseException], ...]:
    """Returns what a thread meets that waits for an event loop which ends."""
    if _trio is None:
        return (ConcurrentCancelled,)
    return _trio.RunFinishedError, _trio.Cancelled, ConcurrentCancelled


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
        if _trio is None:
            return cls(None, None)
        run = _trio.lowlevel.current_trio_token() if _trio.lowlevel.in_trio_task() else None
        return cls(run, _asyncio._get_running_loop())

    @staticmethod
    def is_in_thread() -> bool:
        """Says whether an event loop runs in this thread, also where none of its tasks does."""
        if _trio is None:
            return False
        return _trio.lowlevel.in_trio_run() or _asyncio._get_running_loop() is not None

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
            result: T = _trio.from_thread.run(function, trio_token=self.trio_run)
            return result
        assert self.loop is not None
        call = function()
        try:
            future: Future[T] = _asyncio.run_coroutine_threadsafe(call, self.loop)
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
        is_guest = self.loop is not None and _asyncio.current_task(self.loop) is None
        if self.trio_run is not None and (self.loop is None or is_guest):
            return f"trio's run {id(self.trio_run):#x} in {where}"
        if self.loop is not None:
            return f"asyncio's loop {id(self.loop):#x} in {where}"
        return f"{where}, which runs no event loop"
