"""A client's connected socket: forwards received data, sends at once, and keeps unsent data.

It has no task. The server's `Poller` calls `ready` when the kernel reports an event, and the
transport reads and passes the data to its `Receiver`. A send goes to the kernel at once. Data that
the kernel does not take is kept and sent later. The owner waits for that before it sends more, so
at most one message is kept.

The kernel reports each change once (edge-triggered). Therefore a transport that may not have read
all data asks for another report.
"""

from __future__ import annotations

import select
import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

if TYPE_CHECKING:
    from shoal.asgi.connections import ConnectionCounts

_TCP_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_READ_SIZE: Final = 2**16
# How much unsent data the kernel takes. By default it would take megabytes for each client that
# does not read, and filling its buffer holds up other clients.
_MOST_NOT_SENT: Final = 2**17
_ENDED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Receiver(ABC):
    """Handles events at a transport. No method may wait, or raise for a client's mistake."""

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Handles bytes from the client; never empty."""

    @abstractmethod
    def client_ended(self) -> None:
        """Handles the client's end, after all its data; or paused, with data to come."""

    @abstractmethod
    def all_sent(self) -> None:
        """Handles that the kernel has taken all unsent data, and has room again."""

    @abstractmethod
    def connection_lost(self) -> None:
        """Handles that the connection broke. The transport is closed."""


class _Nobody(Receiver):
    """The receiver of a closed transport."""

    @override
    def data_received(self, data: bytes) -> None:
        pass

    @override
    def client_ended(self) -> None:
        pass

    @override
    def all_sent(self) -> None:
        pass

    @override
    def connection_lost(self) -> None:
        pass


# The receiver of closed transports. A transport and its receiver refer to each other, and would
# otherwise stay until the garbage collector runs.
NOBODY: Final = _Nobody()


class Poller(ABC):
    """Calls `Transport.ready` after events at a transport's socket."""

    @abstractmethod
    def add(self, transport: Transport) -> None:
        pass

    @abstractmethod
    def remove(self, transport: Transport) -> None:
        """Stops watching a transport, which still has its socket open."""

    @abstractmethod
    def report_again(self, transport: Transport) -> None:
        """Reports the current state of a transport, even if it was reported before."""

    @abstractmethod
    def watch_sending(self, transport: Transport, *, is_wanted: bool) -> None:
        """Sets whether it is reported that a socket can take more data."""

    @abstractmethod
    async def run(self) -> None:
        pass


class Transport:
    """A connected stream socket, which this object owns."""

    __slots__ = (
        "_awaits_room",
        "_counts",
        "_later",
        "_poller",
        "_socket",
        "fd",
        "is_open",
        "is_paused",
        "receiver",
        "unsent",
    )

    receiver: Receiver  # to be set before `start`

    def __init__(
        self,
        connected: socket.socket,
        poller: Poller,
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
        if events & select.POLLOUT and self.is_blocked:
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
        if not self.is_open:
            return True
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
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
        if self.is_open and not self.is_blocked:
            poll = select.poll()
            poll.register(self.fd, select.POLLOUT)
            if not poll.poll(0):
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
        if not self.is_open:
            return False
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

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
        """Closes the socket, and notifies the receiver."""
        receiver = self.receiver
        self.abort()
        receiver.connection_lost()
