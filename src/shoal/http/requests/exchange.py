"""One request and its answer, in plain ASGI messages.

Starlette's `Request` and responses are not used here on purpose. On trio its streamed response
cancels the task that closes the connection, so that connections leak, and its ``is_disconnected``
is never true. Creating the objects costs as much as the batching does.

Every send has a deadline. A client that does not read would otherwise block this task for ever,
and everything that waits for it.
"""

from __future__ import annotations

import math
import re
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from shoal.batching.calls.leaving import CallerLeft, Departure
from shoal.http.requests.body import read_body, too_large
from shoal.http.requests.content_coding import compressed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from shoal.http.direct_call import DirectCall
    from shoal.http.requests.body import IncompleteBodies
    from shoal.http.requests.counted import Counted
    from shoal.observe.metrics import ItemTimes, StreamTimes
    from shoal.serving.http_options import HttpOptions

JSON: Final = b"application/json"

DISCONNECT: Final = "shoal.disconnect"
"""The name of the ASGI extension by which a server tells that a client has left."""

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")

NO_PARAMS: Final[Mapping[str, Any]] = {}
"""The parameters of a path that has none."""

_FIELDS: Final = b"\r\ncontent-type: %b\r\nx-request-id: "
_JSON_FIELDS: Final = _FIELDS % JSON


class _Offered:
    """What a server offers by the extension of ASGI; see `DirectCall`."""

    def __init__(self, offered: Mapping[str, Any]) -> None:
        self.when_left: Callable[[Callable[[], object] | None], object] = offered["when_left"]
        self.heartbeat: Callable[[float, bytes], object] | None = offered.get("heartbeat")
        self.is_cut_off: Callable[[], bool] = offered.get("is_cut_off", bool)
        self._refused_with: Callable[[], int] = offered.get("refused_with", int)

    @property
    def refused_with(self) -> int:
        return self._refused_with()


class Dispatcher(Protocol):
    """What all requests to an application share.

    Attributes:
        settings: The options of the server.
        incomplete: Bounds what is held of incomplete bodies.
        streams: The times of streams.
    """

    settings: HttpOptions
    incomplete: IncompleteBodies
    streams: StreamTimes

    def new_id(self) -> bytes:
        """Returns the id of a request whose client gave it none."""
        ...

    def go_on(
        self, exchange: Exchange, route: Any, step: Callable[[Exchange], Awaitable[None] | None]
    ) -> Awaitable[None] | None:
        """Goes on with a request, and answers what `step` raises.

        Returns:
            What must be awaited; None for nothing.
        """
        ...


class Exchange:
    """One HTTP request, and the sending of its answer.

    Args:
        dispatcher: What all requests share.
        direct: The server's call, if nothing is between the server and this package; it makes what
            ASGI has when that is needed. None for a request of ASGI, which `by_asgi` makes.
        path_params: The values of the path's parameters, for a direct call.

    Attributes:
        arrived_at: When it came, on the loop's clock, if it came whole and that is known.
        began_at: When it came, in seconds: on the clock of `direct`, else of `time.perf_counter`.
        direct: As above.
        counted: What the request is counted under, if not under its route.
        method: The method of the request.
        headers: The request's headers; the last one of those with the same name.
        kept: What `suspend` was given to keep.
        settings: The options of the server.
        status: The status of the answer; 0 until it has begun. If it can't be completed, it is set
            to what the request is to be counted by; and to 0 at the end if it is not to be counted.
    """

    __slots__ = (
        *("_dispatcher", "_id", "_offered", "_path_params", "_receive", "_route", "_scope"),
        *("_send", "_step", "arrived_at", "began_at", "counted", "direct", "headers", "kept"),
        *("method", "settings", "status"),
    )

    headers: Mapping[bytes, bytes]
    kept: Any
    method: str

    def __init__(
        self,
        dispatcher: Dispatcher,
        direct: DirectCall | None,
        path_params: Mapping[str, Any] = NO_PARAMS,
    ) -> None:
        self.arrived_at: float | None = None
        self.began_at = perf_counter() if direct is None else direct.now()
        self._scope: Scope | None = None
        self._receive: Receive | None = None
        self._send: Send | None = None
        self._path_params = path_params
        self.status = 0
        self.counted: Counted | None = None
        self.settings = dispatcher.settings
        self._id: bytes | None = None
        self._dispatcher = dispatcher
        self.direct = direct
        self._offered: DirectCall | _Offered | None = direct
        if direct is not None:
            self.method = direct.line.method
            self.headers = direct.headers

    @classmethod
    def by_asgi(
        cls, dispatcher: Dispatcher, scope: Scope, receive: Receive, send: Send
    ) -> Exchange:
        """Returns the exchange of a request that comes by ASGI.

        Args:
            dispatcher: What all requests share.
            scope: The ASGI scope.
            receive: The ASGI callable for what the client sends.
            send: The ASGI callable for the answer.
        """
        exchange = cls(dispatcher, None)
        exchange._scope = scope
        exchange._receive = receive
        exchange._send = send
        exchange.method = scope["method"]
        exchange.headers = dict(scope["headers"])
        extensions = scope.get("extensions")
        if extensions and DISCONNECT in extensions:
            exchange._offered = _Offered(extensions[DISCONNECT])
        return exchange

    @property
    def took_s(self) -> float:
        """How long it took until its whole answer was given, or until now, in seconds."""
        direct = self.direct
        if direct is None:
            return perf_counter() - self.began_at
        return (direct.answered_at or direct.now()) - self.began_at

    @property
    def scope(self) -> Scope:
        """The ASGI scope."""
        if self._scope is None:
            assert self.direct is not None
            self._scope = self.direct.scope()
            if self._path_params:
                self._scope["path_params"] = dict(self._path_params)
        return self._scope

    @property
    def receive(self) -> Receive:
        """The ASGI callable for what the client sends."""
        if self._receive is None:
            assert self.direct is not None
            self._receive = self.direct.receive
        return self._receive

    @property
    def _asgi_send(self) -> Send:
        if self._send is None:
            assert self.direct is not None
            self._send = self.direct.send
        return self._send

    @property
    def wants_no_body(self) -> bool:
        """Whether only the headers of an answer are requested."""
        return self.method == "HEAD"

    @property
    def departure(self) -> Departure:
        """How to learn that the client has left; the body must have been read."""
        offered = self._offered
        watch = None if offered is None else offered.when_left
        return Departure(partial(_until_left, self.receive), watch)

    @property
    def send_timeout_s(self) -> float:
        """How long the client may take to accept one message, in seconds.

        It is infinite if the server itself limits that.
        """
        return self.settings.send_timeout_s if self._offered is None else math.inf

    @property
    def heartbeat(self) -> Callable[[float, bytes], object] | None:
        """Makes the server send bytes whenever the answer was silent for some seconds.

        None if the server does not offer that.
        """
        return None if self._offered is None else self._offered.heartbeat

    def item_times(self, endpoint: str) -> ItemTimes:
        """Returns where the times of streams of an endpoint are counted."""
        return self._dispatcher.streams.of(endpoint)

    @property
    def is_cut_off(self) -> bool:
        """Whether `CallerLeft` means that the server ends, and a last answer can still be sent."""
        return self._offered is not None and self._offered.is_cut_off()

    @property
    def refused_with(self) -> int:
        """The status that the server has answered with in place of the application; 0 for none."""
        return 0 if self._offered is None else self._offered.refused_with

    async def body(self) -> bytes:
        """Reads the whole body.

        Raises:
            Refused: The body is too large, or arrives in too many pieces, or too much is held of it
                and others.
            CallerLeft: The client disconnected before it had sent the whole body.
        """
        body = self.whole_body()
        if body is not None:
            return body
        most = self.settings.max_body_bytes
        held = self._dispatcher.incomplete.of(self.scope.get("client"))
        return await read_body(self.receive, self.headers.get(b"content-length"), most, held)

    def whole_body(self) -> bytes | None:
        """Returns the whole body, once; None if it must be awaited.

        Raises:
            Refused: The body is too large.
        """
        direct = self.direct
        body = None if direct is None else direct.whole_body()
        if direct is None or body is None:
            return None
        if len(body) > (most := self.settings.max_body_bytes):
            raise too_large(most)
        if direct.is_loop_time:
            self.arrived_at = self.began_at
        return body

    def suspend(
        self, route: Any, step: Callable[[Exchange], Awaitable[None] | None], kept: object
    ) -> None:
        """Gives the task back until `direct` is resumed.

        Args:
            route: The route of the request.
            step: Called then; what it returns is awaited, unless that is None.
            kept: What `step` finds in the attribute `kept`, and must take out of it: it may refer
                to this object.
        """
        assert self.direct is not None
        self._route = route
        self._step = step
        self.kept = kept
        self.direct.suspend(self._resumed)

    def _resumed(self) -> Awaitable[None] | None:
        return self._dispatcher.go_on(self, self._route, self._step)

    @property
    def id(self) -> bytes:
        """The client's ``X-Request-ID`` if it is well-formed, else a generated one."""
        return self._id or self._find_id()

    @property
    def request_id(self) -> str:
        """The same as text."""
        return self.id.decode("ascii")

    def _find_id(self) -> bytes:
        given = self.headers.get(b"x-request-id")
        is_usable = given is not None and _REQUEST_ID.fullmatch(given)
        self._id = given if given is not None and is_usable else self._dispatcher.new_id()
        return self._id

    async def answer(
        self,
        status: int,
        media_type: bytes,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Sends a whole answer.

        Raises:
            CallerLeft: The client is gone, or did not read in time.
        """
        least = self.settings.compress_from_bytes
        if status in (204, 304):  # which have no body
            await self.answer_without_body(status, headers)
        elif self.direct is not None and media_type is JSON and least is None:
            self.answer_directly(status, media_type, body, headers)
        else:
            if least is not None:
                accepted = self.headers.get(b"accept-encoding", b"")
                body, headers = compressed(accepted, body, headers, least)
            length = b"%d" % len(body)
            described = [(b"content-type", media_type), (b"content-length", length), *headers]
            # Handled here and not by the server: the length for HEAD is that of the body for GET.
            sent = b"" if self.wants_no_body else body
            await self._deliver(self._begin(status, described), _body(sent, more=False))

    def answer_directly(
        self,
        status: int,
        media_type: bytes,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Sends a whole answer by the server's call."""
        assert self.direct is not None
        self.status = status
        fields = _JSON_FIELDS if media_type is JSON else _FIELDS % media_type
        if headers:
            fields = b"".join([b"\r\n%b: %b" % pair for pair in headers]) + fields
        self.direct.answer(status, fields + (self._id or self._find_id()), body)

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
        await self._pass_on(_body(data, more=True))

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
        if self._offered is not None:
            try:
                for message in messages:
                    await self._asgi_send(message)
            except OSError as error:
                raise CallerLeft("the connection was lost") from error
            return
        with anyio.CancelScope(deadline=anyio.current_time() + self.send_timeout_s) as scope:
            for message in messages:
                await self._pass_on(message)
        if scope.cancelled_caught:
            raise self.gave_up()

    async def _pass_on(self, message: Message) -> None:
        try:
            await self._asgi_send(message)
        except OSError as error:  # from servers that report a lost connection
            raise CallerLeft("the connection was lost") from error


async def _until_left(receive: Receive) -> None:
    """Waits until the client disconnects; the body must have been read.

    A client that closes only its sending side (``shutdown(SHUT_WR)``) counts as disconnected:
    servers can't tell the two cases apart without writing.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


def split_path(scope: Scope) -> tuple[str, str]:
    """Splits a request's path at the application's mount point.

    Returns:
        The prefix above it, empty if it is not mounted; and the path below it, from ``/`` on.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
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
