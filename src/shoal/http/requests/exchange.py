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
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.calls.leaving import CallerLeft, Departure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import Message, Receive, Scope, Send

    from shoal.http.requests.body import IncompleteBodies
    from shoal.serving.http_options import HttpOptions

JSON: Final = b"application/json"

DISCONNECT: Final = "shoal.disconnect"
"""The name of the ASGI extension by which a server tells that a client has left."""

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")
# The headers that are read; one pass over a request's headers finds them.
_WANTED: Final = frozenset(
    {
        b"accept",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"x-priority",
        b"x-request-id",
        b"x-serve-call-method",
        b"x-serve-shard-key",
    }
)


class Exchange:
    """One HTTP request, and the sending of its answer.

    Attributes:
        scope: The ASGI scope.
        receive: The ASGI callable for what the client sends.
        headers: The request's headers that this package reads.
        status: The status of the answer; 0 until it has begun.
        wants_no_body: Whether only the headers of an answer are requested.
        departure: How to learn that the client has left; the body must have been read.
        heartbeat: Makes the server send bytes whenever the answer was silent for some seconds; None
            if the server does not offer that.
        send_timeout_s: How long the client may take to accept one message, in seconds; infinity if
            the server itself limits that.
        incomplete: Bounds what is held of incomplete bodies.
        max_json_elements: How many elements its body may have, if it is JSON.
    """

    __slots__ = (
        "_id",
        "_make_id",
        "_send",
        "departure",
        "headers",
        "heartbeat",
        "incomplete",
        "max_json_elements",
        "receive",
        "scope",
        "send_timeout_s",
        "status",
        "wants_no_body",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        settings: HttpOptions,
        make_id: Callable[[], bytes],
        incomplete: IncompleteBodies,
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.headers: dict[bytes, bytes] = {
            name: value for name, value in scope["headers"] if name in _WANTED
        }
        self.status = 0
        self.wants_no_body = scope["method"] == "HEAD"
        self.max_json_elements = settings.max_json_elements
        self._id: bytes | None = None
        self._make_id = make_id
        self.incomplete = incomplete
        self._send = send
        extensions = scope.get("extensions")
        offered = extensions.get(DISCONNECT) if extensions else None
        if offered is None:
            self.departure = Departure(partial(_until_left, receive))
            self.send_timeout_s = settings.send_timeout_s
            self.heartbeat = None
        else:
            self.departure = Departure(partial(_until_left, receive), offered["when_left"])
            self.send_timeout_s = math.inf
            self.heartbeat = offered.get("heartbeat")

    @property
    def id(self) -> bytes:
        """The client's ``X-Request-ID`` if it is well-formed, else a generated one."""
        if self._id is None:
            given = self.headers.get(b"x-request-id")
            is_usable = given is not None and _REQUEST_ID.fullmatch(given)
            self._id = given if given is not None and is_usable else self._make_id()
        return self._id

    @property
    def request_id(self) -> str:
        """The same as text."""
        return self.id.decode("ascii")

    async def answer(
        self,
        status: int,
        media_type: bytes,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Sends a whole answer.

        Raises:
            CallerLeft: The client is gone, or did not read in time.
        """
        length = b"%d" % len(body)
        described = [(b"content-type", media_type), (b"content-length", length), *headers]
        # Handled here and not by the server: the length for HEAD is that of the body for GET.
        sent = b"" if self.wants_no_body else body
        await self._deliver(self._begin(status, described), _body(sent, more=False))

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
        if self.send_timeout_s == math.inf:
            try:
                for message in messages:
                    await self._send(message)
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
            await self._send(message)
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
