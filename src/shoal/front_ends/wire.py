"""The channel between a front end and the server's process, and its messages.

A frame of `shoal.replicas.process.wire.frames` holds many messages, as one pickle: reading or
writing a frame costs ten times as much as a message in it. Pickles are safe here: both ends are
Shoal's own, run as one user, and are connected with a socket pair that no other process can reach.
Data of clients is never unpickled: it is text and bytes within the messages.

A message has a name, the id of the request that it concerns, or 0, and a content:

================ ===================================================================================
From the server's process to a front end:
----------------------------------------------------------------------------------------------------
``serve``        accept clients
``drain``        end after the running requests
``abort``        close all connections by force, and end
``count``        send the counts of the connections
``send``         the next messages of ASGI, from the application
``whole``        a whole response: its status, headers and body
``array``        the same, with an array to be written as JSON: its format, shape and bytes
``send pickled`` one message of ASGI, pickled
``texts``        several messages on a WebSocket: their texts in UTF-8
``ended``        nothing more is sent, whether or not the response has ended
``cut off``      answer 503, since the server ends
``want``         how many more of the client's messages the application takes
``heartbeat``    seconds and bytes: send the bytes whenever the response was silent for that time
``decode``       a decoder for requests with a method and a path, or none: see `Decoders`
``watch drain``  send ``draining`` when the server drains; the application closes the WebSocket
``trace``        the ids of the request's trace and span, for the access log
From a front end to the server's process:
----------------------------------------------------------------------------------------------------
``ready``        it can serve
``connections``  the counts of all connections so far: `ConnectionTotals` as a tuple
``refused``      status and seconds of a request that was refused here and not forwarded
``request``      a request: see below `Head`
``message``      a message of ASGI, from the client
``taken``        how many more bytes of the response the client has taken
``left``         the client is gone (0), or the server has answered in place of the application
                 (the status of that response)
``cut off``      the request is cut off, and may send some last words
``draining``     the server drains; sent after ``watch drain`` only
================ ===================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.frames import FrameKind
from shoal.replicas.process.wire.messages import Message, MessageCodec, packed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Mapping

    from shoal.asgi.extensions import BeginCall
    from shoal.replicas.process.wire.frames import Frame, FrameReader
    from shoal.replicas.process.wire.shared_memory import Region


# The shared memory of each direction, in bytes; pages take memory once used.
MEMORY: Final = 32 * 2**20

# How many bytes of a response are sent ahead of the client.
WINDOW: Final = 2**16

# How many paths of requests a front end has decoders for, at most.
MOST_TAUGHT: Final = 1024

# How many messages of a client are sent ahead of the application.
MESSAGES_AHEAD: Final = 8

# The name of the message, the id of its request, and its content.
PassedMessage: TypeAlias = tuple[str, int, Any]


@dataclass(slots=True)
class Head:
    """The part of a request that requests with the same head share."""

    scope: Mapping[str, Any]  # without client, state and extensions
    offered: Collection[str]  # the extensions of the front end and its server
    # In the server's process: what the application has lent for such requests.
    begin: BeginCall | None = None


# The content of ``request``: the number of its head; the head, unless one with this number was sent
# before (a new one replaces it); the client's address; the body, which is None if it arrives in
# messages; and the number of a decoder with the pickled item that it made of the body, which is
# then sent only on demand. Nearly all requests of a connection have the same head, which costs more
# to send and read than the rest of a small request. A head with the number 0 is not kept.


def size_of(message: Mapping[str, Any]) -> int:
    return len(message.get("body") or message.get("text") or message.get("bytes") or "")


# Messages from this size on go through the shared memory.
_LEAST_SHARED: Final = 2**16
# Messages from this size on are sent without waiting for others.
_MOST_TOGETHER: Final = 2**17


class Channel:
    """One end: sends messages, and receives them. It owns its socket."""

    # Messages posted in one pass of the event loop are sent together. The responses of a batch are
    # posted at once, and a system call for each would cost more than the rest of a response.

    def __init__(
        self,
        sock: socket.socket,
        reader: FrameReader,
        outgoing: Region,
        incoming: Region,
        on_invalid_frame: Callable[[Exception], object],
    ) -> None:
        self._connection = FrameConnection(sock, reader, on_invalid_frame)
        self._codec = MessageCodec(outgoing, incoming)
        self._parking = parking_of_this_loop()
        self._posted: list[PassedMessage] = []
        self._size = 0  # of the posted messages, in bytes
        self.waiter: Any = None  # of the task that flushes, if it waits

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    def post(self, name: str, id_: int = 0, content: object = None, size: int = 0) -> None:
        """Sends a message soon; a content that can't be pickled would block all others."""
        self._posted.append((name, id_, content))
        self._size += size
        if self._size >= _MOST_TOGETHER:
            self.flush()
        if self.waiter is not None:
            self._parking.wake(self.waiter)
            self.waiter = None

    async def run(self, handle: Callable[[list[PassedMessage]], object]) -> None:
        """Passes the received messages to a function, until the other end is gone."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._flush_when_posted)
            tasks.start_soon(self._connection.write)
            await self._connection.read_in_task(partial(self._take, handle))
            tasks.cancel_scope.cancel()

    def flush(self) -> None:
        """Sends all posted messages, now or as soon as the socket takes them."""
        if not self._posted:
            return
        # A large pickle is made in pieces, so that large bodies are copied only to the memory.
        is_large = self._size >= _LEAST_SHARED
        message = packed(self._posted) if is_large else Message([dumps(self._posted, 5)])
        self._posted = []
        self._size = 0
        if self._codec.reserve(message):
            self._codec.write(message)
        self._connection.send(self._codec.frame(FrameKind.MESSAGES, 0, message))

    def close(self) -> None:
        """Closes the socket and frees the shared memory, once `run` has ended."""
        self._connection.close()
        # Each end refers to the other's objects; without this they would stay until a collection.
        self._codec = MessageCodec()

    async def _flush_when_posted(self) -> None:
        while True:
            if not self._posted:
                await self._parking.park(self)
            self.flush()

    def _take(self, handle: Callable[[list[PassedMessage]], object], frame: Frame) -> None:
        self._codec.take_back(frame)
        handle(self._codec.opened_here(frame))
