"""One request and its answer, in plain ASGI messages.

Starlette's `Request` and its responses are left out of this path on purpose. Its streamed response
cancels the task that closes the connection, on trio, so that connections leak; its
``is_disconnected`` never says so there; and building them costs as much as the batching does.

Every send has a deadline. A client that does not read would otherwise hold this task, and whatever
waits for it, for as long as it likes.

A body is bounded in bytes and in pieces while it is read, so nothing is kept that will be refused.
The bound on pieces grows with what has come: a client that sends its body byte by byte makes the
server do a message's work for each, and an honest one, even on the slowest line, sends packets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Message, Receive, Scope, Send

    from shoal.http.requests.settings import HttpSettings

JSON: Final = b"application/json"

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")
# What is looked at in each request, found in one pass over its headers.
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


class ClientLeft(Exception):
    """The client is gone, or does not read what it is sent."""


class Exchange:
    """One HTTP request, and the sending of its answer.

    Attributes:
        scope: The ASGI scope.
        receive: The ASGI callable for what the client sends.
        headers: Those of the request's headers that this package looks at.
        request_id: The client's ``X-Request-ID`` where it is a sane one, else one of ours.
        status: The status of the answer; 0 until it has begun.
        wants_no_body: Whether only the headers of an answer are asked for.
        send_timeout_s: How long the client may take to accept one message, in seconds.
        max_json_elements: How many elements its body may have, if it is JSON.
    """

    __slots__ = (
        "_send",
        "headers",
        "max_json_elements",
        "receive",
        "request_id",
        "scope",
        "send_timeout_s",
        "status",
        "wants_no_body",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, settings: HttpSettings, fallback_id: str
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.headers: dict[bytes, bytes] = {
            name: value for name, value in scope["headers"] if name in _WANTED
        }
        given = self.headers.get(b"x-request-id")
        self.request_id = (
            given.decode("ascii") if given and _REQUEST_ID.fullmatch(given) else fallback_id
        )
        self.status = 0
        self.wants_no_body = scope["method"] == "HEAD"
        self._send = send
        self.send_timeout_s = settings.send_timeout_s
        self.max_json_elements = settings.max_json_elements

    async def answer(
        self,
        status: int,
        media_type: bytes,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Sends a whole answer.

        Raises:
            ClientLeft: The client is gone, or did not read in time.
        """
        length = str(len(body)).encode("ascii")
        described = [(b"content-type", media_type), (b"content-length", length), *headers]
        # Said of HEAD, and not left to the server: its length is that of what GET would be sent.
        sent = b"" if self.wants_no_body else body
        await self._deliver(self._begin(status, described), _body(sent, more=False))

    async def answer_without_body(
        self, status: int, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Sends an answer that has no body.

        Raises:
            ClientLeft: As for `answer`.
        """
        await self._deliver(self._begin(status, headers), _body(b"", more=False))

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begins an answer whose body follows piece by piece.

        Raises:
            ClientLeft: As for `answer`.
        """
        await self._deliver(self._begin(status, headers))

    async def piece(self, data: bytes) -> None:
        """Sends one piece of the body; the caller sees to the deadline.

        Raises:
            ClientLeft: The client is gone.
        """
        await self._pass_on(_body(data, more=True))

    async def end(self, data: bytes) -> None:
        """Sends the last piece of the body.

        Raises:
            ClientLeft: As for `answer`.
        """
        await self._deliver(_body(data, more=False))

    def gave_up(self) -> ClientLeft:
        """Makes the error of a client that does not read what it is sent."""
        return ClientLeft(f"the client did not read for {self.send_timeout_s} s")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Message:
        self.status = status
        return {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"x-request-id", self.request_id.encode("ascii"))],
        }

    async def _deliver(self, *messages: Message) -> None:
        with anyio.CancelScope(deadline=anyio.current_time() + self.send_timeout_s) as patience:
            for message in messages:
                await self._pass_on(message)
        if patience.cancelled_caught:
            raise self.gave_up()

    async def _pass_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # how servers say it that say it at all
            raise ClientLeft("the connection was lost") from error


def split_path(scope: Scope) -> tuple[str, str]:
    """Splits a request's path where the application is mounted.

    Returns:
        What is above, empty where it is not mounted; and what is below, from ``/`` on.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    # A server may be told of a prefix that a proxy takes off: then the path does not have it.
    if root and path.startswith(root):
        below = path[len(root) :]
        if not below:
            return root, "/"
        if below[0] == "/":
            return root, below
    return "", path


def _body(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


_FREE_PIECES: Final = 1024
_LEAST_BYTES_PER_PIECE: Final = 64


async def read_body(receive: Receive, declared: bytes | None, max_bytes: int) -> bytes:
    """Reads a whole body.

    Args:
        receive: The ASGI callable.
        declared: The ``Content-Length`` header, if there is one.
        max_bytes: How large the body may be.

    Raises:
        Refused: The body is too large, or comes in too many pieces.
        ClientLeft: The client left before it had sent it all.
    """
    if declared is not None and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft("the client left before its request was complete")
        piece: bytes = message.get("body", b"")
        if piece:
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            pieces.append(piece)
            if len(pieces) > _FREE_PIECES + size // _LEAST_BYTES_PER_PIECE:
                raise Refused(
                    Problem(
                        413,
                        "body-too-fragmented",
                        "The body comes in too many pieces",
                        f"{len(pieces)} pieces for {size} bytes; send larger ones.",
                    )
                )
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(max_bytes: int) -> Refused:
    return Refused(
        Problem(
            413,
            "body-too-large",
            "The body is too large",
            f"A request may have a body of at most {max_bytes} bytes.",
        )
    )
