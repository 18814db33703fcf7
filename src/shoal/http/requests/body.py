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


_FREE_PIECES: Final = 1024
_LEAST_BYTES_PER_PIECE: Final = 64


async def read_body(
    receive: Receive,
    declared: bytes | None,
    max_bytes: int,
    incomplete: IncompleteBodies | None = None,
    client: Any = None,
) -> bytes:
    """Reads a whole body.

    Args:
        receive: The ASGI callable.
        declared: The ``Content-Length`` header, if there is one.
        max_bytes: The largest body, in bytes.
        incomplete: Counts what is held of it while it is incomplete.
        client: The address of the connection; None if it is not known.

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
                if size + len(piece) > max_bytes:
                    raise too_large(max_bytes)
                size += len(piece)
                if incomplete is not None:
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
            message = await receive()
    finally:
        if incomplete is not None:
            incomplete.release(client, size)


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
