"""The body of a request as it is sent; imports httpx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PIECE: Final = 2**17


class Upload(httpx.AsyncByteStream):
    """A body that is sent in pieces, since httpx limits the time of each, not of the whole.

    It is its own iterator. The streams of httpx iterate by async generators, which a request that
    is cancelled in the middle leaves to the garbage collector, and trio warns of each.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._sent = 0

    @override
    def __aiter__(self) -> AsyncIterator[bytes]:
        self._sent = 0
        return self

    async def __anext__(self) -> bytes:
        if self._sent >= len(self._body):
            raise StopAsyncIteration
        piece = self._body[self._sent : self._sent + _PIECE]
        self._sent += len(piece)
        return piece
