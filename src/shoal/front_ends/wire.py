"""What a front end and the server's process send each other.

A frame holds many messages, as one pickle: to read or write a frame costs ten times as much as a
message in it. For the frames see `shoal.replicas.process.wire.frames`. Both ends are Shoal's own
and run as one user, connected by a socket pair that no other process can reach, so pickles are safe
here. What a client has sent is never unpickled: it is text and bytes within them.

A message has a name, the id of the request that it concerns, or 0, and a content:

================ ===================================================================================
From the server's process to a front end:
----------------------------------------------------------------------------------------------------
``serve``        accept clients
``drain``        end after the requests that are being answered
``abort``        close all connections by force, and end
``count``        send the counts of the connections
``send``         the next messages of ASGI, from the application
``last``         its last ones, after which nothing follows
``send pickled`` one message of ASGI, pickled
``texts``        several messages on a WebSocket: their texts in UTF-8
``ended``        the application has returned without the end of its answer
``cut off``      answer 503, since the server ends
``want``         the application takes so many more of the client's messages
``heartbeat``    seconds and bytes: send these whenever the answer was silent for so long
``watch drain``  the application closes the WebSocket itself if it is told that the server drains
``trace``        the ids of the request's trace and span, for the access log
From a front end to the server's process:
----------------------------------------------------------------------------------------------------
``ready``        it can serve
``connections``  the counts of all connections so far: `ConnectionTotals` as a tuple
``refused``      status and seconds of a request that was answered and is not passed on
``request``      a request: see `Request`
``message``      a message of ASGI, from the client
``taken``        the client has taken so many bytes of the answer
``left``         the client is gone, or the server has answered it in place of the application: the
                 status of that answer, or 0
``cut off``      the request is cut off, and may have some last words
``draining``     the server drains, for a WebSocket whose application asked to be told
================ ===================================================================================
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY: Final = 32 * 2**20
"""How large the shared memory of each direction is, in bytes; pages take memory once used."""

WINDOW: Final = 2**16
"""How many bytes of an answer are sent before the client has taken any of them."""

MESSAGES_AHEAD: Final = 8
"""How many messages of a client are sent before the application has taken one."""

PassedMessage: TypeAlias = tuple[str, int, Any]
"""The name of a message, the id of its request, and its content."""


class FrontKind(IntEnum):
    """The kind of a frame."""

    START = 1
    """The options of a front end: its first frame."""
    MESSAGES = 2
    """A pickled list of `PassedMessage`."""


class Head(NamedTuple):
    """What the requests with the same head share.

    Attributes:
        scope: The scope of ASGI without its client, state and extensions.
        offered: What the front end and its server offer; see `shoal.server.served_call`.
    """

    scope: Mapping[str, Any]
    offered: tuple[str, ...]


Request: TypeAlias = tuple[int, Head | None, tuple[str, int] | None, bytes | None]
"""The number of its head; the head, unless one with this number was sent before, which it replaces;
the client's address; and the body, which is None if it comes in messages.

The requests of a connection nearly always have the same head, which costs more to send and to read
than all the rest of a small request. A head with the number 0 is not kept."""


def size_of(message: Mapping[str, Any]) -> int:
    """Returns about how large a message is, in bytes."""
    return len(message.get("body") or message.get("text") or message.get("bytes") or "")
