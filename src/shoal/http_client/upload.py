"""The body of a request as it is sent; imports httpx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PIECE: Final = 2**17


class Upload(httpx.AsyncByteStream):
    """A body that is sent in pieces, since httpx limits the time of each, not of the whole."""

    # It is no async generator, as the streams of httpx are: a request that is cancelled in the
    # middle leaves that to the garbage collector, and trio warns of it.

    def __init__(self, body: bytes) -> None:
        self._body = self._rest = memoryview(body)
        self.was_begun = False  # whether a part of it may have been sent

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._rest = self._body  # httpx sends it again after a redirect, or with credentials
        return self

    async def __anext__(self) -> bytes:
        self.was_begun = True
        if not self._rest:
            raise StopAsyncIteration
        piece, self._rest = self._rest[:_PIECE], self._rest[_PIECE:]
        return bytes(piece)
