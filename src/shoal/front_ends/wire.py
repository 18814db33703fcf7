"""What a front end and the server's process send each other.

Frames are those of process replicas, with kinds of their own; see
`shoal.replicas.process.wire.frames`. Both ends are Shoal's own and run as one user, connected by a
socket pair that no other process can reach, so pickles are safe here. What a client has sent is
never unpickled: it is text and bytes within them.

The head of a request is sent once. The requests of one connection nearly always have the same head,
which costs more to send and to read than all the rest of a small request.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY: Final = 32 * 2**20
"""How large the shared memory of each direction is, in bytes; pages take memory once used."""

WINDOW: Final = 2**16
"""How many bytes of an answer are sent before the client has taken any of them."""

MESSAGES_AHEAD: Final = 8
"""How many messages of a client are sent before the application has taken one."""

NUMBER: Final = struct.Struct("<Q")
SECONDS: Final = struct.Struct("<d")
REFUSAL: Final = struct.Struct("<Hd")  # the status, and how long the request took, in seconds


class FrontKind(IntEnum):
    """The kind of a frame. Its id is that of a request, where nothing else is said."""

    SMALL = 0
    """Many small messages, each with the kind and the id that its frame would have."""
    # The server's process to a front end:
    START = 1
    """The options: the first frame, by itself."""
    SERVE = 2
    """Accept clients."""
    DRAIN = 3
    """End after the requests that are being answered."""
    BEGIN = 5
    """The beginning of an answer: the size of the pickle as `NUMBER`; the pickled status, headers,
    and whether this is all of the answer; the first part of the body."""
    PART = 6
    """A part of the answer's body."""
    LAST = 7
    """The last part of the answer's body."""
    SEND = 8
    """A message on a WebSocket: a pickled message of ASGI."""
    TEXTS = 9
    """Several messages on a WebSocket: a pickled list of texts."""
    WANT = 10
    """The application takes so many further messages of the client: `NUMBER`."""
    HEARTBEAT = 11
    """Send this when the answer was silent for so long: `SECONDS`, the data."""
    WATCH_DRAIN = 12
    """The application closes the WebSocket itself once it is told that the server drains."""
    ENDED = 13
    """The application has returned without the end of its answer."""
    CUT = 14
    """From the server's process: refuse the request with 503, since the server ends. From a front
    end: the request is cut off, and may have some last words."""
    ABORT = 15
    """Close all connections by force, and end."""
    COUNT = 16
    """Tell how many connections there are."""
    TRACE = 17
    """The ids of the request's trace and span, with a space between them, for the access log."""
    # A front end to the server's process:
    READY = 20
    """It can serve."""
    HEAD = 21
    """A pickled `RequestHead`; the id is its number."""
    FORGET = 22
    """No head that was sent is used any more."""
    REQUEST = 23
    """A request with its whole body: the `NUMBER` of its head, and the body."""
    OPEN = 24
    """A request whose body comes in messages, or a WebSocket: the `NUMBER` of its head."""
    MESSAGE = 25
    """A pickled message of ASGI from the client."""
    LEFT = 26
    """The client is gone, or the server has answered it in place of the application: the status of
    that answer as `NUMBER`, which is 0 if there was none."""
    TAKEN = 27
    """The client has taken so many bytes of the answer: `NUMBER`."""
    DRAINING = 28
    """The server drains, for a WebSocket whose application asked to be told."""
    CONNECTIONS = 29
    """The pickled `ConnectionTotals` of all connections so far, as a tuple."""
    REFUSED = 30
    """A request was answered that is not passed on: `REFUSAL`."""


class Refusal(NamedTuple):
    """The answer to requests that the server's process can't answer, because it ends or is gone.

    Attributes:
        headers: Its headers, but for the length.
        body: Its body.
    """

    headers: list[tuple[bytes, bytes]]
    body: bytes


class RequestHead(NamedTuple):
    """What requests with the same head share.

    Attributes:
        scope: The scope of ASGI, without its state and extensions.
        has_heartbeats: Whether the front end's server sends heartbeats itself.
        is_websocket: Whether it is that of a WebSocket.
        is_kept: Whether other requests with this head may follow.
    """

    scope: Mapping[str, Any]
    has_heartbeats: bool
    is_websocket: bool
    is_kept: bool


DENIAL: Final = "websocket.http.response"
"""The extension of ASGI by which an application refuses a WebSocket with an answer of its own."""


def size_of(message: Mapping[str, Any]) -> int:
    """Returns about how large a message on a WebSocket is, in bytes."""
    return len(message.get("text") or message.get("bytes") or "")
