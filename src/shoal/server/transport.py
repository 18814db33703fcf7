"""A client's connected socket, and the poller that reports events at all sockets of a server.

A transport forwards received data, sends at once, and keeps unsent data. It has no task. The
server's poller calls `ready` when the kernel reports an event, and the transport reads and passes
the data to its `Receiver`. A send goes to the kernel at once. Data that
the kernel does not take is kept and sent later. The owner waits for that before it sends more, so
at most one message is kept.

The kernel reports each change once (edge-triggered). Therefore a transport that may not have read
all data asks for another report.

All sockets of a server are in one epoll object, and the event loop watches only that object. A
request costs no registration, no task and no wake-up of its own: one report of the loop covers all
sockets with events. A server answers a third more requests than with a task for each connection
that waits for its socket (`benchmarks/http.py`).
"""

from __future__ import annotations

import logging
import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from anyio.abc import TaskGroup

    from shoal.asgi.extensions import ConnectionCounts
    from shoal.loops.parking import Parking

_log = logging.getLogger("shoal.server")

_TCP_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_READ_SIZE: Final = 2**16
# How much unsent data the kernel takes. By default it would take megabytes for each client that
# does not read, and filling its buffer holds up other clients.
_MOST_NOT_SENT: Final = 2**17
_REPORTS_AT_ONCE: Final = 256
_WRITABLE: Final = select.POLLOUT
_ENDED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Receiver:
    """Handles events at a transport. No method may wait, or raise for a client's mistake."""

    def data_received(self, data: bytes) -> None:
        """Handles bytes from the client; never empty."""

    def client_ended(self) -> None:
        """Handles the client's end, after all its data; or paused, with data to come."""

    def all_sent(self) -> None:
        """Handles that the kernel has taken all unsent data, and has room again."""

    def connection_lost(self) -> None:
        """Handles that the connection broke. The transport is closed."""


# The receiver of closed transports. A transport and its receiver refer to each other, and would
# otherwise stay until the garbage collector runs.
NOBODY: Final = Receiver()


class Transport:
    """A connected stream socket, which this object owns."""

    receiver: Receiver  # to be set before `start`

    def __init__(
        self,
        connected: socket.socket,
        poller: EpollPoller | TaskPoller,
        counts: ConnectionCounts | None = None,
    ) -> None:
        self._counts = counts
        if counts is not None:
            counts.opened(connected)
        connected.setblocking(False)
        self._socket = connected
        self._poller = poller
        self.fd = connected.fileno()
        self.is_open = True
        self.unsent: memoryview | bytes = b""
        self._later = b""  # data that was sent after `unsent`
        self._awaits_room = False
        self.is_paused = False
        with suppress(OSError):  # a UNIX socket does not have the option
            # Otherwise a response in two parts waits some 40 ms for the client's delayed
            # acknowledgement of the first part.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            if _TCP_NOTSENT_LOWAT is not None:
                connected.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _MOST_NOT_SENT)

    @property
    def name(self) -> Any:
        """The server's address; raises `OSError` if the connection is gone."""
        return self._socket.getsockname()

    @property
    def peer(self) -> Any:
        """The client's address; raises `OSError` if the client is gone."""
        return self._socket.getpeername()

    @property
    def is_blocked(self) -> bool:
        """Whether data is unsent or `has_room` was false; `all_sent` reports the end."""
        return bool(self.unsent) or self._awaits_room

    def start(self) -> None:
        self._poller.add(self)

    def ready(self, events: int) -> None:
        if events & _WRITABLE and self.is_blocked:
            self._send_rest()
        if not self.is_paused:
            try:
                data = self._socket.recv(_READ_SIZE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # also of a socket that was closed
                self.lose()
                return
            if not data:
                self.receiver.client_ended()
                return
            self.receiver.data_received(data)
            if len(data) < _READ_SIZE and not events & _ENDED:
                return  # that was all
        if self.is_paused:
            if self.is_open and events & _ENDED:
                self.receiver.client_ended()
        elif self.is_open:
            # The rest is read in the next pass, after other transports.
            self._poller.report_again(self)

    def pause(self) -> None:
        """Stops reading; input stays in the kernel, but its end is still noticed."""
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if self.is_open:
                self._poller.report_again(self)

    def send(self, data: bytes) -> bool:
        """Sends data; returns False if some is kept, and `all_sent` then reports the end."""
        if self.unsent:
            self._later += data
            return False
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # also of a socket that was closed
            self.lose()
            return True
        if sent == len(data):
            return True
        # `bytes` copies only objects that the application may change later.
        self.unsent = memoryview(bytes(data))[sent:]
        self._poller.watch_sending(self, is_wanted=True)
        return False

    def has_room(self) -> bool:
        """Returns whether the kernel takes more data; if not, `all_sent` reports when."""
        if self.is_open and not self.is_blocked and not _events_at(self.fd, select.POLLOUT):
            self._awaits_room = True
            self._poller.watch_sending(self, is_wanted=True)
        return not self.is_blocked

    def end_sending(self) -> None:
        with suppress(OSError):  # the client is gone
            self._socket.shutdown(socket.SHUT_WR)

    def read_now(self) -> None:
        self.ready(0)

    def has_unread(self) -> bool:
        """Returns whether there is data to read, or the client has closed its side."""
        return self.is_open and _events_at(self.fd, select.POLLIN) != 0

    def close(self) -> None:
        """Closes the socket; data that the kernel has taken is still delivered. Idempotent."""
        if self.is_open:
            self.is_open = False
            self.unsent = self._later = b""
            self._awaits_room = False
            self._poller.remove(self)
            if self._counts is not None:
                self._counts.closing(self._socket)
            self._socket.close()
            self.receiver = NOBODY

    def abort(self) -> None:
        """Closes the socket by force; data that the client has not received is discarded."""
        if self.is_open:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.close()

    def _send_rest(self) -> None:
        while self.unsent:
            try:
                sent = self._socket.send(self.unsent)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.lose()
                return
            self.unsent = self.unsent[sent:]
            if self.unsent:
                return
            self.unsent, self._later = self._later, b""
        self._awaits_room = False
        self._poller.watch_sending(self, is_wanted=False)
        self.receiver.all_sent()

    def lose(self) -> None:
        receiver = self.receiver
        self.abort()
        receiver.connection_lost()


class EpollPoller:
    """Watches all sockets with one epoll object, which the event loop watches."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        # Not constants of the module: other platforms lack the names.
        self._reading = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
        self._sending_too = self._reading | select.EPOLLOUT
        self._epoll = select.epoll()
        self._transports: dict[int, Transport] = {}

    def add(self, transport: Transport) -> None:
        self._transports[transport.fd] = transport
        self._epoll.register(transport.fd, self._reading)

    def remove(self, transport: Transport) -> None:
        # The kernel removes a closed socket.
        self._transports.pop(transport.fd, None)

    def report_again(self, transport: Transport) -> None:
        self.watch_sending(transport, is_wanted=transport.is_blocked)

    def watch_sending(self, transport: Transport, *, is_wanted: bool) -> None:
        # The epoll object is closed once the server was cancelled.
        if transport.fd in self._transports and not self._epoll.closed:
            self._epoll.modify(transport.fd, self._sending_too if is_wanted else self._reading)

    async def run(self) -> None:
        try:
            await self._parking.watch_readable(self._epoll.fileno(), self._report)
        finally:
            self._epoll.close()

    def _report(self) -> None:
        find = self._transports.get
        for fd, events in self._epoll.poll(0, _REPORTS_AT_ONCE):
            transport = find(fd)
            if transport is not None:
                try:
                    transport.ready(events)
                except Exception as error:
                    _contain(transport, error)


class TaskPoller:
    """Watches each socket with a task, for platforms without epoll."""

    def __init__(self) -> None:
        # While reading is paused, it does not notice that a client disconnects.
        self._tasks: TaskGroup | None = None
        # Wakes a transport's task if it waits for something other than input.
        self._again: dict[Transport, anyio.Event] = {}
        # The transports with a task that waits until their socket is writable. Each has one task at
        # most, since an event loop lets only one task wait for a socket to be writable.
        self._sending: set[Transport] = set()

    def add(self, transport: Transport) -> None:
        self._start(self._watch, transport)

    def remove(self, transport: Transport) -> None:
        again = self._again.pop(transport, None)
        if again is not None:
            again.set()
        anyio.notify_closing(transport.fd)

    def report_again(self, transport: Transport) -> None:
        again = self._again.get(transport)
        if again is not None:
            again.set()

    def watch_sending(self, transport: Transport, *, is_wanted: bool) -> None:
        if is_wanted and transport not in self._sending:
            self._sending.add(transport)
            self._start(self._watch_sending, transport)

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
            events = _events_at(transport.fd, select.POLLIN | _ENDED)
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


def _events_at(fd: int, wanted: int) -> int:
    """Returns which of these events there are at a descriptor; also an error or its end."""
    poll = select.poll()
    poll.register(fd, wanted)
    return next((events for _, events in poll.poll(0)), 0)


def _contain(transport: Transport, error: Exception) -> None:
    """Ends a connection after a mistake of this package, so that the server continues."""
    _log.error("an error ended a connection", exc_info=error)
    transport.lose()


def new_poller(parking: Parking) -> EpollPoller | TaskPoller:
    return EpollPoller(parking) if hasattr(select, "epoll") else TaskPoller()
