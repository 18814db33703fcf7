"""Identifies the current event loop, also where none may be running.

A batcher belongs to the event loop that opened it. A thread nearly always has one loop, but there
are exceptions: trio's guest mode runs trio and a host loop alternately in one thread, and code
called in one loop may run another inside. So `EventLoop` identifies a loop by two things: the trio
run of the current task, and the running asyncio loop. A trio run that is a guest of asyncio always
has the same host loop; the host's own tasks have no trio run.

A worker process with plain code needs neither trio nor asyncio, and a program on asyncio needs no
trio. Importing them takes longer than all the rest of a start. So this module imports neither: code
that runs in a loop has loaded its library.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import CancelledError as ConcurrentCancelled
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from shoal.errors import NotOpen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    import trio


T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

_mark: Callable[[Any], object] | None = None
_to_mark: Final[list[Callable[..., Any]]] = []


def holds_ctrl_c(function: F) -> F:
    """Marks a function in which trio raises no KeyboardInterrupt for Ctrl-C, nor in its callees."""
    # trio raises it in its main task instead, so one raised from these functions is the code's own.
    _to_mark.append(function)
    if _mark is not None:
        mark_what_holds_ctrl_c(_mark)
    return function


def mark_what_holds_ctrl_c(mark: Callable[[Any], object]) -> None:
    """Marks known and later functions with `mark`; called when trio is in use."""
    global _mark
    _mark = mark
    with suppress(IndexError):  # all are marked, by this thread or another
        while True:
            mark(_to_mark.pop())


def _if_loaded(module: str, name: str) -> Any:
    """Returns None if the module is not loaded, or only in part."""
    return getattr(sys.modules.get(module), name, None)


def in_trio_task() -> bool:
    ask = _if_loaded("trio.lowlevel", "in_trio_task")
    return ask is not None and ask()


def in_trio_run() -> bool:
    """Returns whether trio runs in this thread, also as a guest that has no turn now."""
    ask = _if_loaded("trio.lowlevel", "in_trio_run")
    return ask is not None and ask()


def running_asyncio_loop() -> asyncio.AbstractEventLoop | None:
    ask = _if_loaded("asyncio.events", "get_running_loop")
    try:
        return None if ask is None else ask()
    except RuntimeError:
        return None


def cancellations() -> tuple[type[BaseException], ...]:
    """Returns the cancellation exceptions of the loaded event loop libraries."""
    kinds = _if_loaded("asyncio.exceptions", "CancelledError"), _if_loaded("trio", "Cancelled")
    return tuple(kind for kind in kinds if kind is not None)


def loop_ended() -> tuple[type[BaseException], ...]:
    """Returns the exceptions raised in a thread that waits for an event loop which ends."""
    kinds = _if_loaded("trio", "RunFinishedError"), _if_loaded("trio", "Cancelled")
    return ConcurrentCancelled, *(kind for kind in kinds if kind is not None)


_started: Final[set[asyncio.Task[None]]] = set()
"""What `EventLoop.start` started on asyncio, which itself would let them be collected."""


class EventLoop(NamedTuple):
    """An event loop, compared by identity; none if both fields are None."""

    trio_run: trio.lowlevel.TrioToken | None
    loop: asyncio.AbstractEventLoop | None

    @classmethod
    def here(cls) -> EventLoop:
        run = sys.modules["trio.lowlevel"].current_trio_token() if in_trio_task() else None
        return cls(run, running_asyncio_loop())

    @staticmethod
    def is_in_thread() -> bool:
        """Returns whether an event loop runs in this thread, even if the caller is in no task."""
        return in_trio_run() or running_asyncio_loop() is not None

    @property
    def is_here(self) -> bool:
        return EventLoop.here() == self

    @property
    def is_none(self) -> bool:
        return self.trio_run is None and self.loop is None

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs an async function in this loop from a thread; `RuntimeError` if it has ended."""
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

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Schedules a function call in this loop, from any thread; nothing if it has ended."""
        with suppress(RuntimeError):
            if self.trio_run is not None:
                self.trio_run.run_sync_soon(function, *args)
            elif self.loop is not None:
                self.loop.call_soon_threadsafe(function, *args)

    def start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts a task outside of all nurseries, in the caller's loop and context.

        It is cancelled when the loop ends, and must raise nothing else.
        """
        if self.trio_run is not None:
            start: Any = sys.modules["trio.lowlevel"].spawn_system_task
            start(function, context=copy_context())
        else:
            assert self.loop is not None
            task = self.loop.create_task(function())
            _started.add(task)
            task.add_done_callback(_started.discard)

    def described(self) -> str:
        """Describes the loop for messages; call it in the loop's thread."""
        where = f"thread {threading.current_thread().name!r}"
        # While a guest run has its turn no task of its host runs; in a loop that runs inside a trio
        # run a task does.
        is_guest = self.loop is not None and sys.modules["asyncio"].current_task(self.loop) is None
        if self.trio_run is not None and (self.loop is None or is_guest):
            return f"trio's run {id(self.trio_run):#x} in {where}"
        if self.loop is not None:
            return f"asyncio's loop {id(self.loop):#x} in {where}"
        return f"{where}, which runs no event loop"


class Home:
    __slots__ = ("described", "loop", "process", "thread")

    def __init__(self) -> None:
        self.loop = EventLoop.here()
        self.thread = get_ident()
        # The loop does not exist in forked processes.
        self.process = os.getpid()
        self.described = self.loop.described()


def not_open_here(name: str, homes: Sequence[Home], written: str = "...") -> NotOpen:
    """Returns the error for a caller in another event loop than those of open batchers."""
    # `written` is how the program writes the batched function.
    here = EventLoop.here()
    there = " and ".join(home.described for home in homes)
    where = f"it is open in {there}, and " if homes else "it "
    if here.is_none:
        advice = (
            f"plain code writes:\n    with shoal.blocking({written}) as call:\n"
            "        ...  # call(item)\n"
            "and in a thread of a program that has it open in an event loop: "
            f"{written}.from_thread(item)"
        )
    else:
        advice = (
            "each event loop opens its own, around the calls:\n"
            f"    async with shoal.open_batchers({written}):\n"
            f"        ...  # {written}(item)\n"
            "or open all batched functions at their first call, with one line in main:\n"
            "    async with shoal.open_batchers():"
        )
    return NotOpen(
        f"{name} is not open in this event loop: {where}was called from "
        f"{here.described()}; {advice}"
    )
