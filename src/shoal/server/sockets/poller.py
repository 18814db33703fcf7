"""Reports events at the sockets of a server, on either event loop.

All sockets of a server are in one epoll object, and the event loop watches only that object. A
request costs no registration, no task and no wake-up of its own: one report of the loop covers all
sockets with events. A server answers a third more requests than with a task for each connection
that waits for its socket (`benchmarks/http.py`).
"""

from __future__ import annotations

import logging
import select
from typing import TYPE_CHECKING, Any, Final

import anyio
from typing_extensions import override

from shoal.server.sockets.transport import Poller, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from anyio.abc import TaskGroup

    from shoal.loops.parking import Parking

_log = logging.getLogger("shoal.server")

_REPORTS_AT_ONCE: Final = 256
_ENDED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class EpollPoller(Poller):
    """Watches all sockets with one epoll object, which the event loop watches."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        # Not constants of the module: other platforms lack the names.
        self._reading = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
        self._sending_too = self._reading | select.EPOLLOUT
        self._epoll = select.epoll()
        self._transports: dict[int, Transport] = {}

    @override
    def add(self, transport: Transport) -> None:
        self._transports[transport.fd] = transport
        self._epoll.register(transport.fd, self._reading)

    @override
    def remove(self, transport: Transport) -> None:
        # The kernel removes a closed socket.
        self._transports.pop(transport.fd, None)

    @override
    def report_again(self, transport: Transport) -> None:
        if transport.fd in self._transports:
            self._watch(transport, is_sending=transport.is_blocked)

    @override
    def watch_sending(self, transport: Transport, *, is_wanted: bool) -> None:
        if transport.fd in self._transports:
            self._watch(transport, is_sending=is_wanted)

    @override
    async def run(self) -> None:
        try:
            await self._parking.watch_readable(self._epoll.fileno(), self._report)
        finally:
            self._epoll.close()

    def _watch(self, transport: Transport, *, is_sending: bool) -> None:
        if not self._epoll.closed:  # it is once the server was cancelled
            self._epoll.modify(transport.fd, self._sending_too if is_sending else self._reading)

    def _report(self) -> None:
        find = self._transports.get
        for fd, events in self._epoll.poll(0, _REPORTS_AT_ONCE):
            transport = find(fd)
            if transport is not None:
                try:
                    transport.ready(events)
                except Exception as error:
                    _contain(transport, error)


class TaskPoller(Poller):
    """Watches each socket with a task, for platforms without epoll."""

    def __init__(self) -> None:
        # While reading is paused, it does not notice that a client disconnects.
        self._tasks: TaskGroup | None = None
        # Wakes a transport's task if it waits for something other than input.
        self._again: dict[Transport, anyio.Event] = {}
        # The transports with a task that waits until their socket is writable. Each has one task at
        # most, since an event loop lets only one task wait for a socket to be writable.
        self._sending: set[Transport] = set()

    @override
    def add(self, transport: Transport) -> None:
        self._start(self._watch, transport)

    @override
    def remove(self, transport: Transport) -> None:
        again = self._again.pop(transport, None)
        if again is not None:
            again.set()
        anyio.notify_closing(transport.fd)

    @override
    def report_again(self, transport: Transport) -> None:
        again = self._again.get(transport)
        if again is not None:
            again.set()

    @override
    def watch_sending(self, transport: Transport, *, is_wanted: bool) -> None:
        if is_wanted and transport not in self._sending:
            self._sending.add(transport)
            self._start(self._watch_sending, transport)

    @override
    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def _start(
        self, watch: Callable[[Transport], Coroutine[Any, Any, None]], transport: Transport
    ) -> None:
        if self._tasks is not None:  # else the server was cancelled
            self._tasks.start_soon(self._run, watch, transport)

    async def _run(
        self, watch: Callable[[Transport], Coroutine[Any, Any, None]], transport: Transport
    ) -> None:
        try:
            await watch(transport)
        except anyio.ClosedResourceError:
            pass  # the transport was closed
        except Exception as error:
            _contain(transport, error)

    async def _watch(self, transport: Transport) -> None:
        while transport.is_open:
            self._again[transport] = again = anyio.Event()
            if transport.is_paused:
                await again.wait()
                continue
            await anyio.wait_readable(transport.fd)
            events = _events_at(transport.fd)
            transport.ready(events)
            if events & _ENDED:
                # The end stays readable. It is reported once, and again only on request.
                await again.wait()

    async def _watch_sending(self, transport: Transport) -> None:
        try:
            while transport.is_open and transport.is_blocked:
                await anyio.wait_writable(transport.fd)
                transport.ready(select.POLLOUT)
        finally:
            self._sending.discard(transport)


def _events_at(fd: int) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLIN | _ENDED)
    return next((events for _, events in poll.poll(0)), 0)


def _contain(transport: Transport, error: Exception) -> None:
    """Ends a connection after a mistake of this package, so that the server continues."""
    _log.error("an error ended a connection", exc_info=error)
    transport.lose()


def new_poller(parking: Parking) -> Poller:
    return EpollPoller(parking) if hasattr(select, "epoll") else TaskPoller()
