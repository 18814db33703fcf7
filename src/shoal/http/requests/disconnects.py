"""Notices disconnects and slow readers on servers without the extension `DISCONNECT`.

ASGI reports a disconnect through `receive`, so a task has to wait there while the call runs. A task
or a cancel scope for each request costs several times what the call itself costs, and nearly all
calls end before their client could disconnect. A request therefore only registers. One task looks
at the registry at intervals, and starts a task that waits in `receive` for each request that it has
seen before. It sleeps while no request is registered. The same task ends overdue sends, whose
deadlines come from `begin_send`.
"""

from __future__ import annotations

import logging
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from shoal.failures.exceptions import ungrouped
from shoal.failures.held import holding
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup
    from starlette.types import Receive

    from shoal.loops.parking import Parking

# A disconnect this soon after the start of a call is noticed late.
UNNOTICED_S: Final = 0.05

_HOLDING: Final = holding()
_log: Final = logging.getLogger("shoal.http")


class WatchedClient(Protocol):
    """The client of a request, and the task that waits in its `receive`, if one has begun."""

    receive: Receive
    has_disconnected: bool  # `receive` has reported a disconnect
    on_left: Callable[[], object] | None  # set while it is watched
    # The cancel scope of that task, and its end. Servers and middleware may fail if `receive` is
    # pending as a response ends, so wait for its end before.
    listening: anyio.CancelScope | None
    has_ended: anyio.Event | None

    @property
    def request_id(self) -> str: ...


class Disconnects:
    # Invariant: a watched client is in the set, or has a listener.

    def __init__(self) -> None:
        self._parking: Parking | None = None  # while nothing is watched
        # The tasks that send a message, and until when they may.
        self.sends: dict[Any, float] = {}
        self._watched: set[WatchedClient] = set()
        self._wake: anyio.Event | None = None  # set while nothing is registered

    def watch(self, client: WatchedClient, callback: Callable[[], object] | None) -> None:
        """Sets the callback for a disconnect, which must not raise; None removes it."""
        # The body must have been read. After a known disconnect the callback is called at once.
        if callback is None:
            self.forget(client)
        elif client.has_disconnected:
            callback()
        else:
            client.on_left = callback
            if client.listening is None:
                self._watched.add(client)
                if self._wake is not None:
                    self._start_looking(self._wake)

    def forget(self, client: WatchedClient) -> None:
        client.on_left = None
        self._watched.discard(client)
        if client.listening is not None:
            client.listening.cancel()
            client.listening = None

    def begin_send(self, limit_s: float) -> Any:
        """Returns the calling task, which will be cancelled after that time; None if it can't be.

        The task removes itself from `sends` at the end, and was cancelled if it is not there.
        """
        # A cancel scope for each response costs an app on uvicorn a fifth of its requests/s.
        parking = self._parking
        task = None if parking is None else parking.task_here()
        if parking is None or task is None or task in self.sends:  # in the `send` of middleware
            return None
        self.sends[task] = parking.now() + limit_s
        if self._wake is not None:
            self._start_looking(self._wake)
        return task

    def _start_looking(self, wake: anyio.Event) -> None:
        wake.set()
        self._wake = None

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Watches the clients while the block runs; raises its error outside of a group."""
        async with ungrouped() as tasks:
            self._parking = parking_of_this_loop()
            tasks.start_soon(self._look, tasks)
            try:
                yield
            finally:
                self._parking = None
                self._end_sends(math.inf)
                tasks.cancel_scope.cancel()

    async def _look(self, tasks: TaskGroup) -> None:
        seen: set[WatchedClient] = set()
        while True:
            if not (self._watched or self.sends):
                self._wake = anyio.Event()
                await self._wake.wait()
            await anyio.sleep(UNNOTICED_S / 2)
            seen &= self._watched
            self._watched -= seen
            while seen:  # no variable refers to a client while this waits
                _start_listening(seen.pop(), tasks)
            seen |= self._watched
            self._end_sends(anyio.current_time())

    def _end_sends(self, now: float) -> None:
        for task in [task for task, until in self.sends.items() if until <= now]:
            del self.sends[task]
            task.cancel()


def _start_listening(client: WatchedClient, tasks: TaskGroup) -> None:
    client.listening, client.has_ended = anyio.CancelScope(), anyio.Event()
    tasks.start_soon(_listen, client, client.listening, client.has_ended)


@holds_ctrl_c
async def _listen(client: WatchedClient, scope: anyio.CancelScope, has_ended: anyio.Event) -> None:
    # A client that closes only its sending side (``shutdown(SHUT_WR)``) counts as disconnected:
    # servers can't tell the two cases apart without writing.
    try:
        with scope, _HOLDING:  # middleware may have put anything around `receive`
            while (await client.receive())["type"] != "http.disconnect":
                pass
            client.has_disconnected = True
    except Exception:
        client.has_disconnected = True
        _log.exception("request %s: its client can't be watched", client.request_id)
    finally:
        has_ended.set()
    if client.has_disconnected and client.on_left is not None and not scope.cancel_called:
        client.on_left()
