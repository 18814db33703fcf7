"""One request and its response, in plain ASGI messages.

Starlette's `Request` and responses are not used here on purpose. On trio its streamed response
cancels the task that closes the connection, so that connections leak, and its ``is_disconnected``
is never true. Creating the objects costs as much as the batching does.

Every send has a deadline. A client that does not read would otherwise block this task for ever,
and everything that waits for it. A server with the extension `DISCONNECT` limits sends itself.

A body is bounded in bytes and in pieces while it is read, so that no refused body is held. The
bound on pieces grows with the size so far: a body sent byte by byte would cost the server a message
for each byte, while other clients, even on the slowest connection, send packets.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.asgi.extensions import DECODED, DISCONNECT
from shoal.batching.calls.leaving import CallerLeft
from shoal.core.histogram import NO_ENDPOINT
from shoal.http.requests.problem import Refused, explained, too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from shoal.asgi.extensions import BeginCall
    from shoal.batching.calls.leaving import WhenLeft
    from shoal.http.requests.call import EndpointCalls
    from shoal.http.requests.problem import Problem
    from shoal.http.requests.shared_parts import SharedParts


JSON: Final = b"application/json"
# What ``Accept`` says where JSON will do.
ASKS_FOR_JSON: Final = frozenset({None, b"", b"*/*", JSON})
# The header of a response that no cache may keep.
FRESH: Final = ((b"cache-control", b"no-store"),)
# Statuses of responses without a body.
WITHOUT_BODY: Final = (204, 304)

_FREE_PIECES: Final = 1024
_LEAST_BYTES_PER_PIECE: Final = 64
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")


class ServerTimes:
    """What the header `Server-Timing` says; of several calls of a request the longest times."""

    # Until a worker slot was free; waiting for others to fill the batch; in the handler.
    queue_s = wait_s = run_s = 0.0
    ran_from = 0.0  # on the loop's clock

    def header(self) -> tuple[bytes, bytes]:
        times = [("queue", self.queue_s), ("wait", self.wait_s)]
        if self.run_s:
            times.append(("run", self.run_s))
        listed = ", ".join([f"{name};dur={took_s * 1000:.3f}" for name, took_s in times])
        return b"server-timing", listed.encode("ascii")


class Exchange:
    # Most requests change none of these; an attribute of the class costs them nothing.
    # The status of the response; 0 until it has begun. A response that breaks off gets the status
    # for the metrics, or 0 to stay uncounted.
    status = 0
    # The calls of its endpoint, under whose names it is counted.
    calls: EndpointCalls | None = None
    # Counted once, whatever else fails, such as further lines of one request.
    _has_failed = False
    # Middleware that may change a body replaces `receive` or `send`. What bypasses these functions
    # is used only if they are the server's own.
    _offered: Mapping[str, Any] | None = None  # the extension `DISCONNECT`
    front_end: Mapping[str, Any] | None = None  # the extension `DECODED`, with its own `receive`
    # The number of a decoder of the front end, and the item that it made of the body.
    early_item: tuple[int, Any] | None = None
    # For the header `Server-Timing`; None without it, and until a batch has the request.
    times: ServerTimes | None = None

    # As a `WatchedClient`, on a server without the extension `DISCONNECT`.
    has_disconnected = False
    on_left: Callable[[], object] | None = None
    listening: anyio.CancelScope | None = None
    has_ended: anyio.Event | None = None

    def __init__(self, shared: SharedParts, scope: Scope, receive: Receive, send: Send) -> None:
        self.began_at = shared.now()
        self.scope = scope
        self.receive = receive
        self._send = send
        self._shared = shared
        self.options = shared.options
        headers: dict[bytes, bytes] = dict(scope["headers"])
        self.headers: Mapping[bytes, bytes] = headers
        given_id = headers.get(b"x-request-id")
        if given_id is None or not REQUEST_ID.fullmatch(given_id):
            given_id = shared.new_id()
        self.id = given_id
        extensions = scope.get("extensions")
        if extensions:
            self._offered = extensions.get(DISCONNECT)
            if DECODED in extensions and extensions[DECODED]["receive"] == receive:
                self.front_end = front_end = extensions[DECODED]
                self.early_item = front_end["decoded"]

    @property
    def wants_no_body(self) -> bool:
        return bool(self.scope["method"] == "HEAD")

    @property
    def when_left(self) -> WhenLeft:
        """Sets a callback for the disconnect, called once; the body must have been read."""
        if self._offered is None:
            return partial(self._shared.disconnects.watch, self)
        when_left: WhenLeft = self._offered["when_left"]
        return when_left

    @property
    def send_timeout_s(self) -> float:
        """The seconds that the client has to accept one message; inf if the server limits it."""
        return self.options.send_timeout_s if self._offered is None else math.inf

    @property
    def heartbeat(self) -> Callable[[float, bytes], object] | None:
        """Makes the server send bytes after some seconds of silence; None if it can't."""
        return self._unwrapped.get("heartbeat")

    @property
    def direct(self) -> tuple[Callable[[], bool], Callable[[bytes], object]] | None:
        """Functions of the server: whether the client has room, and to send a piece at once."""
        offered = self._unwrapped
        return (offered["has_room"], offered["put"]) if "put" in offered else None

    @property
    def _unwrapped(self) -> Mapping[str, Any]:
        """What the server offers for the body; empty if its `send` was replaced."""
        offered = self._offered
        return {} if offered is None or offered.get("send") != self._send else offered

    def item_clock(self, endpoint: str) -> Callable[[], None]:
        """Starts the clock of a stream of an endpoint; the returned function counts an item."""
        return self._shared.streams[endpoint].clock(self._shared.now)

    @property
    def reports_disconnect(self) -> bool:
        return self._offered is not None

    @property
    def is_cut_off(self) -> bool:
        """Whether `CallerLeft` means that the server stops, and can still send a last response."""
        return self._offered is not None and self._offered.get("is_cut_off", bool)()

    @property
    def refused_with(self) -> int:
        """The status that the server has sent in place of the application; 0 for none."""
        return 0 if self._offered is None else self._offered.get("refused_with", int)()

    def whole_body(self) -> bytes | None:
        """Returns the body if the server has all of it at once; None if `body` must be awaited."""
        if self._offered is None:
            return None
        body: bytes | None = self._offered["whole_body"](self.receive)
        if body is not None and len(body) > self.options.max_body_bytes:
            raise too_large(self.options.max_body_bytes)
        return body

    async def body(self, most: int | None = None) -> bytes:
        """Raises `Refused` for a large or fragmented body, or if too many are incomplete."""
        if most is None:
            most = self.options.max_body_bytes
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
        incomplete, client = self._shared.incomplete, self.scope.get("client")
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
                        detail = f"{len(pieces)} pieces for {size} bytes; send larger ones."
                        raise Refused.of("body-too-fragmented", detail)
                if not message.get("more_body", False):
                    return b"".join(pieces)
                message = await self.receive()
        finally:
            incomplete.release(client, size)

    @property
    def request_id(self) -> str:
        return self.id.decode("ascii")

    def count_under(self, calls: EndpointCalls) -> None:
        """Counts the request, and its failure, under the names of its endpoint's calls."""
        self.calls = calls
        calls.endpoint.requests += 1

    def explained(self, error: Exception, name: str = NO_ENDPOINT) -> Problem:
        """Counts and logs an error of the request; returns its problem."""
        calls = self.calls
        name = name if calls is None else calls.name
        problem = explained(error, self.options, name, self.request_id)
        if calls is not None and not self._has_failed:
            self._has_failed = calls.count_failure(error, problem)
        return problem

    async def respond(
        self,
        status: int,
        media_type: bytes,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Sends a whole response; raises `CallerLeft` if the client is gone or does not read."""
        if status in WITHOUT_BODY:
            await self.respond_without_body(status, headers)
            return
        self.status = status
        sent = [(b"content-type", media_type), *headers, (b"x-request-id", self.id)]
        if self.times is not None:
            sent.append(self.times.header())
        offered = self._offered
        if offered is not None and offered["respond"](self._send, status, sent, body):
            return
        # Handled here and not by the server: the length for HEAD is that of the body for GET.
        sent.insert(1, (b"content-length", b"%d" % len(body)))
        body = b"" if self.wants_no_body else body
        start = {"type": "http.response.start", "status": status, "headers": sent}
        whole = {"type": "http.response.body", "body": body, "more_body": False}
        await self._deliver(start, whole)

    def set_front_end_decoder(self, number: int, description: bytes) -> None:
        """Makes the front end decode requests with this method and path; 0 removes its decoder."""
        if self.front_end is not None:
            self.front_end["teach"](number, description)

    def lend(self, make: Callable[[SharedParts], BeginCall]) -> None:
        """Lends the server what begins the calls of requests with this head, if it takes it."""
        is_bare = self._shared.bare_app is not None
        if is_bare and self.front_end is not None and "lend" in self.front_end:
            self.front_end["lend"](make(self._shared))

    def responded_with_array(self, array: Any) -> bool:
        """Sends an array that the front end writes as JSON; returns False if none can."""
        if self.front_end is None or self.early_item is None:
            return False  # it has not loaded what it needs
        headers = [(b"content-type", JSON), (b"x-request-id", self.id)]
        if self.times is not None:
            headers.append(self.times.header())
        if not self.front_end["respond"](self._send, 200, headers, array):
            return False
        self.status = 200
        return True

    async def respond_without_body(
        self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        await self._deliver(self._begin(status, headers), _body(b"", more=False))

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        await self._deliver(self._begin(status, headers), is_last=False)

    async def piece(self, data: bytes) -> None:
        """Sends a piece of the body; the caller sets the deadline."""
        try:
            await self._send(_body(data, more=True))
        except OSError as error:
            raise CallerLeft("the connection was lost") from error

    async def piece_in_time(self, data: bytes) -> None:
        """Sends a piece of the body, within `send_timeout_s`."""
        await self._deliver(_body(data, more=True), is_last=False)

    async def end(self, data: bytes) -> None:
        await self._deliver(_body(data, more=False))

    def gave_up(self) -> CallerLeft:
        """Returns the error for a client that does not read its response."""
        return CallerLeft(f"the client did not read for {self.send_timeout_s} s")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
        self.status = status
        sent = [*headers, (b"x-request-id", self.id)]
        if self.times is not None:
            sent.append(self.times.header())
        return {"type": "http.response.start", "status": status, "headers": sent}

    async def _deliver(self, *messages: Message, is_last: bool = True) -> None:
        if self._offered is not None:
            for message in messages:
                await self._send(message)
            return
        disconnects = self._shared.disconnects
        try:
            if is_last:
                disconnects.forget(self)
                if self.has_ended is not None:
                    await self.has_ended.wait()
            task = disconnects.begin_send(self.options.send_timeout_s)
            if task is None:
                with anyio.move_on_after(self.options.send_timeout_s) as scope:
                    for message in messages:
                        await self._send(message)
                if scope.cancelled_caught:
                    raise self.gave_up()
                return
            cancelling = task.cancelling()
            try:
                for message in messages:
                    await self._send(message)
            except anyio.get_cancelled_exc_class():
                if task in disconnects.sends or task.cancelling() > cancelling + 1:
                    raise  # others have cancelled it
                raise self.gave_up() from None
            finally:
                if disconnects.sends.pop(task, None) is None:
                    task.uncancel()
        except OSError as error:  # from servers that report a lost connection
            raise CallerLeft("the connection was lost") from error


def split_path(scope: Scope) -> tuple[str, str]:
    """Splits a path at the mount point; the prefix is empty if there is none."""
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
