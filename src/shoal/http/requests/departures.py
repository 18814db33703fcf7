"""Notices clients that leave, or do not read, on servers without the extension `DISCONNECT`.

ASGI tells an application by `receive` that a client has left, so somebody has to wait there while
the call runs. A task or a cancel scope for each request costs several times what the call itself
does, and nearly all calls end before their client could have left. So a request only registers.
One task for all looks at the registry now and then, and starts a task that waits in `receive` for
each request that it has seen before. While no request is registered it sleeps. Likewise it looks
at how long answers have been on their way; see `Parking.limit`.
"""

from __future__ import annotations

import logging
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from shoal.failures.held import holding
from shoal.loops.event_loop import holds_ctrl_c
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup
    from starlette.types import Receive

    from shoal.loops.parking import Limit, Parking

    Registry = dict["Watched", Callable[[], object]]

UNNOTICED_S: Final = 0.05
"""A client that leaves so soon, in seconds, after its call has begun is noticed only then."""

_HOLDING: Final = holding()
_log: Final = logging.getLogger("shoal.http")


class Watched(Protocol):
    """A request whose client is watched; see `Exchange`."""

    receive: Receive
    has_left: bool
    listener: Listener | None

    @property
    def request_id(self) -> str:
        """Its id, for the log."""
        ...

    def stop_listening(self) -> None:
        """Stops waiting for the client to leave, if a task does that."""
        ...


class Departures:
    """The requests whose clients are watched; see `watching`.

    Invariant: a request is in one of the registries or has a listener, or is not watched.
    """

    def __init__(self) -> None:
        self._parking: Parking | None = None  # while nothing is watched
        # The times of answers that are being sent.
        self._limits: set[Any] = set()
        # Those registered since the last look, and those that were there at it.
        self._new: Registry = {}
        self._seen: Registry = {}
        self._wake: anyio.Event | None = None  # while there are none

    def watch(self, exchange: Watched, callback: Callable[[], object] | None) -> None:
        """Sets what is called once when a client leaves; None for nothing.

        Args:
            exchange: The client's request, whose body has been read.
            callback: Called at once if it is known that the client has left. It must not raise.
        """
        if callback is None:
            if not (self._new.pop(exchange, None) or self._seen.pop(exchange, None)):
                exchange.stop_listening()
        elif exchange.has_left:
            callback()
        else:
            self._new[exchange] = callback
            self._start_looking()

    def limit(self, limit_s: float) -> Limit:
        """Returns a limit of the time, in seconds, that the calling task may be in a block."""
        limit = None if self._parking is None else self._parking.limit(limit_s, self._limits)
        if limit is None:
            return anyio.move_on_after(limit_s)
        self._start_looking()
        return limit

    def _start_looking(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Watches the clients while the block runs.

        Raises:
            Exception: What the block raised, not in a group.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._parking = parking_of_this_loop()
            tasks.start_soon(self._look, tasks)
            try:
                yield
            except Exception as error:
                failure = error
            finally:
                self._parking = None
                self._end_limits(math.inf)
            tasks.cancel_scope.cancel()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame

    async def _look(self, tasks: TaskGroup) -> None:
        while True:
            if not (self._new or self._seen or self._limits):
                self._wake = anyio.Event()
                await self._wake.wait()
            await anyio.sleep(UNNOTICED_S / 2)
            long, self._seen, self._new = self._seen, self._new, {}
            for exchange, callback in long.items():
                exchange.listener = Listener()
                tasks.start_soon(_listen, exchange, exchange.listener, callback)
            del long
            self._end_limits(anyio.current_time())

    def _end_limits(self, until: float) -> None:
        for limit in [one for one in self._limits if one.ends_at <= until]:
            limit.end()


class Listener:
    """Waits in `receive` for one client.

    Attributes:
        scope: The scope of the wait.
        ended: Set when it waits no more.
    """

    __slots__ = ("ended", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


@holds_ctrl_c
async def _listen(exchange: Watched, listener: Listener, callback: Callable[[], object]) -> None:
    """Waits until a client disconnects.

    A client that closes only its sending side (``shutdown(SHUT_WR)``) counts as disconnected:
    servers can't tell the two cases apart without writing.
    """
    try:
        with listener.scope, _HOLDING:  # middleware may have put anything around `receive`
            while (await exchange.receive())["type"] != "http.disconnect":
                pass
            exchange.has_left = True
    except Exception:
        exchange.has_left = True
        _log.exception("request %s: its client can't be watched", exchange.request_id)
    finally:
        listener.ended.set()
    if exchange.has_left and not listener.scope.cancel_called:
        callback()
