"""One client's socket, on either event loop: reading, sending and closing.

It waits until the kernel reports that the socket is ready, and then reads or writes directly. So it
behaves alike on both loops and buffers nothing: unread input stays in the kernel, and a send
returns once the kernel has all of it. asyncio's transports would read ahead and buffer what is
sent.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.lowlevel

_NO_LINGER: Final = struct.pack("ii", 1, 0)


class ClientSocket:
    """A connected stream socket, which this object owns from now on.

    One task may read while another one sends.

    Args:
        connected: The socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._is_open = True
        with suppress(OSError):  # a UNIX socket does not have the option
            # Otherwise an answer in two parts waits for the client's delayed acknowledgement of
            # the first one, some 40 ms.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    @property
    def name(self) -> Any:
        """The server's address."""
        return self._socket.getsockname()

    @property
    def peer(self) -> Any:
        """The client's address.

        Raises:
            OSError: The client is gone.
        """
        return self._socket.getpeername()

    async def receive(self, most: int) -> bytes:
        """Waits for bytes, and returns them; returns none when the client has ended its side.

        Raises:
            OSError: The connection was lost.
            anyio.ClosedResourceError: The socket was closed here.

        Cancellation: Nothing was read.
        """
        has_waited = False
        while self._is_open:
            await anyio.lowlevel.checkpoint_if_cancelled()
            try:
                data = self._socket.recv(most)
            except (BlockingIOError, InterruptedError):
                await anyio.wait_readable(self._socket)
                has_waited = True
            else:
                if not has_waited:
                    await anyio.lowlevel.cancel_shielded_checkpoint()
                return data
        raise anyio.ClosedResourceError

    async def send(self, data: bytes) -> None:
        """Sends all of the data.

        Raises:
            OSError: The connection was lost.
            anyio.ClosedResourceError: The socket was closed here.

        Cancellation: Part of it may have been sent.
        """
        left = memoryview(data)
        while self._is_open:
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, InterruptedError):
                await anyio.wait_writable(self._socket)
            else:
                if not left:
                    await anyio.lowlevel.checkpoint()
                    return
        raise anyio.ClosedResourceError

    def has_unread(self) -> bool:
        """Returns whether there is something to read, or the client has closed its side."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def end_sending(self) -> None:
        """Shuts down the sending side; the client sees the end of the data."""
        with suppress(OSError):  # the client is gone
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the socket, and wakes tasks that wait for it; sent data is still delivered."""
        if self._is_open:
            self._is_open = False
            anyio.notify_closing(self._socket)
            self._socket.close()

    def abort(self) -> None:
        """Closes the socket by force; data that the client has not received is discarded."""
        if self._is_open:
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.close()
