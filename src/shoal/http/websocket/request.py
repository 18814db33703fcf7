"""One request on a WebSocket."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio

from shoal.http.requests.arrays import NPY
from shoal.http.requests.exchange import JSON
from shoal.http.websocket.messages import MOST_CREDIT
from shoal.http.websocket.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Scope

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.websocket.messages import NewRequest
    from shoal.loops.parking import Parking

# How much of one stream may wait to be sent, in messages.
_MOST_UNSENT: Final = 16
# What the headers of a handshake say of its own body, and not of a request's.
_OF_HANDSHAKE: Final = frozenset({b"content-encoding", b"content-length"})


class ItemHeaders(NamedTuple):
    """The headers of the requests of one connection, as if they came over HTTP.

    Attributes:
        of_text: Those of an item in JSON.
        of_bytes: Those of an item in a binary message.
    """

    of_text: Mapping[bytes, bytes]
    of_bytes: Mapping[bytes, bytes]

    @classmethod
    def of(cls, http_scope: Scope) -> ItemHeaders:
        """Returns the headers by those of the handshake."""
        given = {n: value for n, value in http_scope["headers"] if n not in _OF_HANDSHAKE}
        return cls({**given, b"content-type": JSON}, {**given, b"content-type": NPY})


class Connection(Protocol):
    """What a request needs of its connection; see `SocketConnection`."""

    id: str
    http_scope: Scope
    item_headers: ItemHeaders
    parking: Parking
    settings: HttpOptions

    @property
    def has_room(self) -> bool:
        """Whether streams may pass on more than one item each."""
        ...


class SocketRequest:
    """One request; what its call and its codec need of an HTTP request.

    Args:
        connection: The connection that it came on.
        new: The message.

    Attributes:
        began_at: The reading of `time.perf_counter` when it came.
        id: Its id, as JSON.
        headers: The headers of the handshake, and of the item as if it came over HTTP.
        credit: How many more items of its stream may be sent.
        unsent: How many messages of its stream wait to be sent.
        is_cancelled: Whether its client has cancelled it.
        has_ended: Whether its last message was made.
        scope_of_task: Cancels its task.
    """

    __slots__ = (
        *("_changed", "_connection", "credit", "headers", "id"),
        *("began_at", "has_ended", "is_cancelled", "scope_of_task", "unsent"),
    )

    method: Final = "POST"

    def __init__(self, connection: Connection, new: NewRequest) -> None:
        self.began_at = perf_counter()
        self._connection = connection
        self.id = new.id
        headers = connection.item_headers
        self.headers = headers.of_bytes if new.is_binary else headers.of_text
        self.credit = new.credit
        self.unsent = 0
        self._changed: Signal | None = None
        self.is_cancelled = False
        self.has_ended = False
        self.scope_of_task = anyio.CancelScope()

    # What a call needs, and a codec.

    @property
    def request_id(self) -> str:
        """The id in the log: the connection's and the request's."""
        return f"{self._connection.id}:{self.id.decode().strip(chr(34))}"

    @property
    def scope(self) -> Scope:
        """The handshake, as a request over HTTP."""
        return self._connection.http_scope

    @property
    def settings(self) -> HttpOptions:
        """The options of the server."""
        return self._connection.settings

    def when_left(self, callback: Callable[[], object] | None) -> None:
        """Does nothing: a task that waits for the call is cancelled when the client leaves."""

    # The connection's side.

    def leave(self) -> None:
        """Cancels the call, which ends soon."""
        self.scope_of_task.cancel()

    def may_send(self) -> bool:
        """Returns whether its stream may pass on one more item."""
        if not self.credit or self.unsent >= _MOST_UNSENT:
            return False
        return not self.unsent or self._connection.has_room

    def add_credit(self, items: int) -> None:
        """Allows its stream to send more items."""
        self.credit = min(self.credit + items, MOST_CREDIT)
        self.tell_stream()

    def tell_stream(self) -> None:
        """Wakes the task that waits until its stream may send, if one does."""
        if self._changed is not None:
            self._changed.set()

    async def wait_to_send(self) -> None:
        """Waits until its stream may pass on one more item."""
        while not self.may_send():
            if self._changed is None:  # few requests have to wait
                self._changed = Signal(self._connection.parking)
            await self._changed.wait()
