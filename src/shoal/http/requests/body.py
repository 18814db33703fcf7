"""Reading the body of a request.

A body is bounded in bytes and in pieces while it is read, so nothing is kept that will be refused.
The bound on pieces grows with the size so far: a body sent byte by byte would cost the server a
message for each byte, while other clients, even on the slowest connection, send packets.

What is held of incomplete bodies is bounded as well, for all clients together and for each
connection. Otherwise one HTTP/2 connection with a hundred streams could hold a hundred bodies, each
without its last byte.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.calls.leaving import CallerLeft
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from starlette.types import Receive

    from shoal.serving.http_options import HttpOptions


class IncompleteBodies:
    """Bounds the bytes that are held of incomplete bodies.

    Args:
        options: The options of the server.
    """

    def __init__(self, options: HttpOptions) -> None:
        self._most = options.max_incomplete_bytes
        # For one connection: a quarter, but always one body.
        self._most_of_one = max(self._most // 4, options.max_body_bytes)
        self._retry_after = str(options.retry_after_s).encode("ascii")
        self._held = 0
        self._held_by: Counter[Any] = Counter()

    def of(self, client: Any) -> HeldBytes:
        """Returns the count of one body.

        Args:
            client: The address of the connection; None if it is not known.
        """
        return HeldBytes(self, client)

    def add(self, client: Any, size: int) -> None:
        """Counts bytes that are held.

        Raises:
            Refused: Too many are.
        """
        self._held += size
        if client is not None:
            self._held_by[client] += size
        if self._held > self._most or self._held_by[client] > self._most_of_one:
            raise Refused(
                Problem(
                    503,
                    "too-many-incomplete-bodies",
                    "Too many bodies are incomplete",
                    "The server holds no more of them; send the request again.",
                    ((b"retry-after", self._retry_after),),
                )
            )

    def release(self, client: Any, size: int) -> None:
        """Counts bytes that are not held any more."""
        self._held -= size
        if client is not None:
            self._held_by[client] -= size
            if not self._held_by[client]:
                del self._held_by[client]


class HeldBytes:
    """What is held of one incomplete body.

    Args:
        bodies: Counts for all.
        client: The address of its connection; None if it is not known.
    """

    __slots__ = ("_bodies", "_client", "_size")

    def __init__(self, bodies: IncompleteBodies, client: Any) -> None:
        self._bodies = bodies
        self._client = client
        self._size = 0

    def add(self, size: int) -> None:
        """Counts a piece of it.

        Raises:
            Refused: Too much is held of this body and others.
        """
        self._size += size
        self._bodies.add(self._client, size)

    def release(self) -> None:
        """Counts it as complete, or dropped."""
        self._bodies.release(self._client, self._size)
        self._size = 0


_FREE_PIECES: Final = 1024
_LEAST_BYTES_PER_PIECE: Final = 64


async def read_body(
    receive: Receive, declared: bytes | None, max_bytes: int, held: HeldBytes | None = None
) -> bytes:
    """Reads a whole body.

    Args:
        receive: The ASGI callable.
        declared: The ``Content-Length`` header, if there is one.
        max_bytes: The largest body, in bytes.
        held: Counts what is held of it while it is incomplete.

    Raises:
        Refused: The body is too large, or arrives in too many pieces, or too much is held of it and
            others.
        CallerLeft: The client disconnected before it had sent the whole body.
    """
    if declared is not None and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large(max_bytes)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        if len(body) > max_bytes:
            raise too_large(max_bytes)
        return body
    pieces: list[bytes] = []
    size = 0
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise CallerLeft("the client left before its request was complete")
            piece: bytes = message.get("body", b"")
            if piece:
                size += len(piece)
                if size > max_bytes:
                    raise too_large(max_bytes)
                if held is not None:
                    held.add(len(piece))
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
            message = await receive()
    finally:
        if held is not None:
            held.release()


def too_large(max_bytes: int) -> Refused:
    """Returns the refusal of a body of more bytes than that."""
    return Refused(
        Problem(
            413,
            "body-too-large",
            "The body is too large",
            f"A request may have a body of at most {max_bytes} bytes.",
        )
    )
