"""Reading a request's body, bounded in bytes and in pieces.

Both bounds hold while the body is read, so nothing is kept that will be refused. The bound on
pieces grows with what has come: a client that sends its body byte by byte makes the server do a
message's work for each, and an honest one, even on the slowest line, sends packets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.http.requests.exchange import ClientLeft
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from starlette.types import Receive

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
