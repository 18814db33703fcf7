"""Waiting and waking of asyncio tasks."""

from __future__ import annotations

import asyncio
import time
from asyncio import Future, InvalidStateError
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import anyio

from shoal.core.request import State
from shoal.loops import private
from shoal.loops.event_loop import in_trio_run, in_trio_task, running_asyncio_loop
from shoal.loops.parking import Parking

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from shoal.core.request import Request
    from shoal.loops.parking import Parked, Scope

FINISHED = State.FINISHED


class AsyncioParking(Parking):
    name = "asyncio"

    def __init__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._thread = get_ident()
        # Called directly, unless the loop has a clock of its own.
        has_usual_clock = getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time
        self.now = time.monotonic if has_usual_clock else loop.time
        self.is_coarse = type(loop).__module__.partition(".")[0] == "uvloop"
        self.new_waiter = partial(Future, loop=loop)
        self.new_scope = anyio.CancelScope
        self.checkpoint = partial(asyncio.sleep, 0)  # as anyio's, which looks for the loop first
        self._state_of = private.scopes_of_anyio()

    def park(self, parked: Parked) -> Awaitable[Any]:
        waiter: Future[None] = Future(loop=self._loop)
        parked.waiter = waiter
        return waiter

    def task_here(self) -> asyncio.Task[Any] | None:
        # To ask for the running loop as well would cost more than all the rest.
        return asyncio.current_task(self._loop) if get_ident() == self._thread else None

    def wake(self, waiter: Any) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def is_spent(self, waiter: Any) -> bool:
        return bool(waiter.done())

    def wake_all(self, parked: Iterable[Parked]) -> None:
        for each in parked:
            waiter: Any = each.waiter
            if type(waiter) is not Future:
                waiter.wake()
            elif not waiter.done():
                waiter.set_result(None)  # pyright: ignore[reportUnknownMemberType]

    def answer_all(self, requests: Sequence[Request], values: Sequence[Any]) -> None:
        for request, value in zip(requests, values, strict=True):
            request.value = value
            request.state = FINISHED
            request.batch = None
            waiter: Any = request.waiter
            if type(waiter) is not Future:
                waiter.wake()
                continue
            try:  # noqa: SIM105 - `suppress` costs 10 % of a call
                waiter.set_result(None)  # pyright: ignore[reportUnknownMemberType]
            except InvalidStateError:
                pass  # its caller was cancelled

    def departed(self, requests: Iterable[Request]) -> list[Request]:
        if not in_trio_run():
            return [request for request in requests if request.waiter.done()]
        # A task of trio, as this loop's guest, can't wait for a future, and gets an error for it in
        # its next turn. Until then the future is not done, but no asyncio task has taken it up.
        return [
            request
            for request in requests
            if (waiter := request.waiter).done() or private.is_not_taken_up(waiter)
        ]

    def seems_here(self) -> bool:
        if running_asyncio_loop() is not self._loop:
            return False
        # While a guest run has its turn, no asyncio task runs. Asking trio for one is slow if there
        # is none.
        return asyncio.current_task(self._loop) is not None or not in_trio_task()

    def is_waited_for_by(self, coroutines: Collection[object]) -> bool:
        parents = {info.id: info.parent_id for info in anyio.get_running_tasks()}
        tasks = {id(task): task for task in asyncio.all_tasks(self._loop)}
        seen: set[Any] = set()
        to_see: list[Any] = [asyncio.current_task(self._loop)]
        while to_see:
            task = to_see.pop()
            if task is None or task in seen:
                continue
            if task.get_coro() in coroutines:
                return True
            seen.add(task)
            to_see += [tasks.get(parents.get(id(task)) or 0), *private.tasks_that_await(task)]
        return False

    def is_in_task(self) -> bool:
        try:
            return asyncio.current_task() is not None
        except RuntimeError:  # the loop has ended
            return False

    def uncancel(self) -> None:
        task = asyncio.current_task()
        while task is not None and task.uncancel():
            pass

    def innermost_scope(self) -> Callable[[], object]:
        state = self._state_of(asyncio.current_task(self._loop))
        return partial(getattr, state, "cancel_scope", None)

    def leave_scopes_in(self, scope: Scope) -> bool:
        # An anyio scope that was not left breaks all scopes around it, up to the task group's.
        state = self._state_of(asyncio.current_task())
        innermost = outer = getattr(state, "cancel_scope", None)
        if innermost is scope:
            return False
        while outer is not None and outer is not scope:
            outer = private.scope_around(outer)
        if outer is None:
            return False
        while state.cancel_scope is not scope:
            state.cancel_scope.__exit__(None, None, None)
        return True

    def call_when_readable(
        self, fd: int, report: Callable[[], object]
    ) -> Callable[[], object] | None:
        try:
            self._loop.add_reader(fd, report)
        except NotImplementedError:  # a proactor
            return None
        return partial(self._loop.remove_reader, fd)

    async def watch_readable(self, fd: int, report: Callable[[], object]) -> None:
        # Not `anyio.wait_readable`, which adds the descriptor again for each wait: for an epoll
        # object that takes the kernel a time for each socket in it.
        waiter: Future[None] = Future(loop=self._loop)
        self._loop.add_reader(fd, lambda: self.wake(waiter))
        try:
            while True:
                await waiter
                waiter = Future(loop=self._loop)
                report()
        finally:
            self._loop.remove_reader(fd)

    async def rest_of_pass(self) -> bool:
        return False  # tasks run in the order in which they became ready
