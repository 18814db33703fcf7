"""One request and its answer, in plain ASGI messages.

Starlette's `Request` and responses are not used here on purpose. On trio its streamed response
cancels the task that closes the connection, so that connections leak, and its ``is_disconnected``
is never true. Creating the objects costs as much as the batching does.

Every send has a deadline. A client that does not read would otherwise block this task for ever,
and everything that waits for it. A server with the extension `DISCONNECT` sees to that itself.

A body is bounded in bytes and in pieces while it is read, so nothing is kept that will be refused.
The bound on pieces grows with the size so far: a body sent byte by byte would cost the server a
message for each byte, while other clients, even on the slowest connection, send packets.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from shoal.asgi.extensions import DISCONNECT
from shoal.batching.calls.leaving import CallerLeft
from shoal.http.requests.problem import Problem, Refused, too_large

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from shoal.asgi.http_options import HttpOptions
    from shoal.batching.calls.leaving import WhenLeft
    from shoal.http.requests.departures import Departures, Listener
    from shoal.http.requests.incomplete import IncompleteBodies
    from shoal.observe.metrics import ItemTimes, StreamTimes

JSON: Final = b"application/json"
WITHOUT_BODY: Final = (204, 304)
"""The statuses of answers that have no body."""

_FREE_PIECES: Final = 1024
_LEAST_BYTES_PER_PIECE: Final = 64
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")


class Counted(NamedTuple):
    """What requests are counted under whose route is not that of one endpoint.

    Attributes:
        name: The name of the endpoint that is called.
        protocol: The protocol; one of `PROTOCOLS`.
    """

    name: str
    protocol: str


class Dispatcher(Protocol):
    """What all requests to an application share.

    Attributes:
        settings: The options of the server.
        departures: Notices clients that leave, on servers that do not tell.
        incomplete: Bounds what is held of incomplete bodies.
        streams: The times of streams.
        now: The clock for the times of requests.
        new_id: Returns the id of a request whose client gave it none.
    """

    settings: HttpOptions
    departures: Departures
    incomplete: IncompleteBodies
    streams: StreamTimes
    now: Callable[[], float]
    new_id: Callable[[], bytes]


class Exchange:
    """One HTTP request, and the sending of its answer.

    Args:
        dispatcher: What all requests share.
        scope: The ASGI scope.
        receive: The ASGI callable for what the client sends.
        send: The ASGI callable for the answer.
        departures: Watches the client if the server does not; None for the dispatcher's.

    Attributes:
        scope: As above.
        receive: As above.
        began_at: When it came, on the dispatcher's clock.
        counted: What the request is counted under, if not under its route.
        method: The method of the request.
        has_left: Whether `receive` has said that the client has left.
        headers: The request's headers; the last one of those with the same name.
        listener: What has waited, or waits, for the client to leave; None before.
        settings: The options of the server.
        status: The status of the answer; 0 until it has begun. If it can't be completed, it is set
            to what the request is to be counted by; and to 0 at the end if it is not to be counted.
    """

    # Most requests change none of these; an attribute of the class costs them nothing.
    status = 0
    counted: Counted | None = None
    has_left = False
    listener: Listener | None = None
    _id: bytes | None = None
    _offered: Mapping[str, Any] | None = None
    _departures: Departures | None = None

    def __init__(
        self,
        dispatcher: Dispatcher,
        scope: Scope,
        receive: Receive,
        send: Send,
        departures: Departures | None = None,
    ) -> None:
        self.began_at = dispatcher.now()
        self.scope = scope
        self.receive = receive
        self._send = send
        self._dispatcher = dispatcher
        self.settings = dispatcher.settings
        self.method: str = scope["method"]
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        extensions = scope.get("extensions")
        if extensions:
            self._offered = extensions.get(DISCONNECT)
        if departures is not None:
            self._departures = departures

    @property
    def wants_no_body(self) -> bool:
        """Whether only the headers of an answer are requested."""
        return self.method == "HEAD"

    @property
    def when_left(self) -> WhenLeft:
        """Sets what is called once when the client leaves; at once if it has left already.

        The body must have been read.
        """
        if self._offered is None:
            return partial((self._departures or self._dispatcher.departures).watch, self)
        when_left: WhenLeft = self._offered["when_left"]
        return when_left

    def stop_listening(self) -> None:
        """Stops waiting for the client to leave, if a task does that."""
        if self.listener is not None:
            self.listener.scope.cancel()

    @property
    def send_timeout_s(self) -> float:
        """How long the client may take to accept one message, in seconds.

        It is infinite if the server itself limits that.
        """
        return self.settings.send_timeout_s if self._offered is None else math.inf

    @property
    def heartbeat(self) -> Callable[[float, bytes], object] | None:
        """Makes the server send bytes whenever the answer was silent for some seconds.

        None if the server does not offer that, or if something is between it and this package that
        may change the body, such as a middleware that compresses it.
        """
        offered = self._offered
        if offered is None or offered.get("send") != self._send:
            return None
        return offered.get("heartbeat")

    @property
    def direct(self) -> tuple[Callable[[], bool], Callable[[bytes], object]] | None:
        """Tells whether the client has room for a piece of the body; and sends one at once.

        None if the server does not offer that, or if something is between it and this package that
        may change the body.
        """
        offered = self._offered
        if offered is None or "put" not in offered or offered["send"] != self._send:
            return None
        return offered["has_room"], offered["put"]

    def item_times(self, endpoint: str) -> ItemTimes:
        """Returns where the times of streams of an endpoint are counted."""
        return self._dispatcher.streams.of(endpoint)

    @property
    def tells_of_disconnect(self) -> bool:
        """Whether the server has the extension `DISCONNECT`."""
        return self._offered is not None

    @property
    def is_cut_off(self) -> bool:
        """Whether `CallerLeft` means that the server ends, and a last answer can still be sent."""
        return self._offered is not None and self._offered.get("is_cut_off", bool)()

    @property
    def refused_with(self) -> int:
        """The status that the server has answered with in place of the application; 0 for none."""
        return 0 if self._offered is None else self._offered.get("refused_with", int)()

    async def body(self, most: int | None = None) -> bytes:
        """Reads the whole body.

        Args:
            most: The largest body, in bytes; None for ``max_body_bytes``.

        Raises:
            Refused: The body is too large, or arrives in too many pieces, or too much is held of it
                and others.
            CallerLeft: The client disconnected before it had sent the whole body.
        """
        if most is None:
            most = self.settings.max_body_bytes
        declared = self.headers.get(b"content-length")
        if declared is not None and declared.isdigit() and int(declared[:20]) > most:
            raise too_large(most)
        message = await self.receive()
        if message.get("more_body") or message["type"] != "http.request":
            return await self._body_in_pieces(message, most)
        body: bytes = message.get("body", b"")
        if len(body) > most:
            raise too_large(most)
        return body

    async def _body_in_pieces(self, message: Message, most: int) -> bytes:
        """Reads the rest of a body that begins with a message."""
        incomplete, client = self._dispatcher.incomplete, self.scope.get("client")
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                if message["type"] == "http.disconnect":
                    raise CallerLeft("the client left before its request was complete")
                piece: bytes = message.get("body", b"")
                if piece:
                    if size + len(piece) > most:
                        raise too_large(most)
                    size += len(piece)
                    incomplete.add(client, len(piece))
                    pieces.append(piece)
                    if len(pieces) > _FREE_PIECES + size // _LEAST_BYTES_PER_PIECE:
                        raise Refused(
                            Problem(
                                413,
                                "body-too-fragmented",
                                "The body arrives in too many pieces",
                                f"{len(pieces)} pieces for {size} bytes; send larger ones.",
                            )
                        )
                if not message.get("more_body", False):
                    return b"".join(pieces)
                message = await self.receive()
        finally:
            incomplete.release(client, size)

    @property
    def id(self) -> bytes:
        """The client's ``X-Request-ID`` if it is well-formed, else a generated one."""
        return self._id or self._find_id()

    def _find_id(self) -> bytes:
        given = self.headers.get(b"x-request-id")
        if given is None or not _REQUEST_ID.fullmatch(given):
            given = self._dispatcher.new_id()
        self._id = given
        return given

    @property
    def request_id(self) -> str:
        """The same as text."""
        return self.id.decode("ascii")

    def answer(
        self,
        status: int,
        media_type: bytes,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Awaitable[None]:
        """Sends a whole answer, once it is awaited.

        Raises:
            CallerLeft: The client is gone, or did not read in time.
        """
        if status in WITHOUT_BODY:
            return self.answer_without_body(status, headers)
        self.status = status
        begin = {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", media_type),
                (b"content-length", b"%d" % len(body)),
                *headers,
                (b"x-request-id", self._id or self._find_id()),
            ],
        }
        # Handled here and not by the server: the length for HEAD is that of the body for GET.
        sent = b"" if self.method == "HEAD" else body
        return self._deliver(begin, {"type": "http.response.body", "body": sent})

    async def answer_without_body(
        self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Sends an answer that has no body.

        Raises:
            CallerLeft: As for `answer`.
        """
        await self._deliver(self._begin(status, headers), _body(b"", more=False))

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begins an answer whose body follows piece by piece.

        Raises:
            CallerLeft: As for `answer`.
        """
        await self._deliver(self._begin(status, headers))

    async def piece(self, data: bytes) -> None:
        """Sends one piece of the body; the caller sets the deadline.

        Raises:
            CallerLeft: The client has disconnected.
        """
        try:
            await self._send(_body(data, more=True))
        except OSError as error:
            raise CallerLeft("the connection was lost") from error

    async def end(self, data: bytes) -> None:
        """Sends the last piece of the body.

        Raises:
            CallerLeft: As for `answer`.
        """
        await self._deliver(_body(data, more=False))

    def gave_up(self) -> CallerLeft:
        """Returns the error for a client that does not read its answer."""
        return CallerLeft(f"the client did not read for {self.send_timeout_s} s")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
        self.status = status
        return {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"x-request-id", self.id)],
        }

    async def _deliver(self, *messages: Message) -> None:
        try:
            if self._offered is not None:
                for message in messages:
                    await self._send(message)
                return
            if self.listener is not None and self.listener.scope.cancel_called:
                # Servers and middleware may take it amiss if one receives at the answer's end.
                await self.listener.ended.wait()
            departures = self._departures or self._dispatcher.departures
            limit = departures.limit(self.settings.send_timeout_s)
            with limit:
                for message in messages:
                    await self._send(message)
            if limit.cancelled_caught:
                raise self.gave_up()
        except OSError as error:  # from servers that report a lost connection
            raise CallerLeft("the connection was lost") from error


def split_path(scope: Scope) -> tuple[str, str]:
    """Splits a request's path at the application's mount point.

    Returns:
        The prefix above it, empty if it is not mounted; and the path below it, from ``/`` on.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root:
        return "", path
    root = root.rstrip("/")
    # If a proxy removes the prefix, the server may know it although the path does not have it.
    if root and path.startswith(root):
        below = path[len(root) :]
        if not below:
            return root, "/"
        if below[0] == "/":
            return root, below
    return "", path


def _body(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
