"""Passes the items of a stream on to a WebSocket, as its client has credit for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.batching.calls.stream import ResultStream
from shoal.http.requests.plain import encoded
from shoal.http.requests.streaming import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.http.requests.streaming import ItemStream
    from shoal.http.websocket.request import SocketRequest


async def relay(
    request: SocketRequest,
    stream: ItemStream,
    put: Callable[[bytes], object],
    tick: Callable[[], object],
) -> None:
    """Makes a call, and passes on its items until the stream is over.

    Plain items are passed on by the handler's task, which costs no switch to this one.

    Args:
        request: The request.
        stream: The stream of its call, not yet started.
        put: Sends an item, as JSON, which the request may send.
        tick: Counts an item.
    """
    async with stream:
        if isinstance(stream, ResultStream):
            take = partial(_put_at_once, request, put, tick)
            stream.pass_on(take)  # pyright: ignore[reportUnknownMemberType] (items of any type)
        async for item in stream:  # pyright: ignore[reportUnknownVariableType] (of any type)
            text = encoded(item)
            tick()
            await request.wait_to_send()
            put(text)


def _put_at_once(
    request: SocketRequest, put: Callable[[bytes], object], tick: Callable[[], object], item: Any
) -> bool:
    """Takes an item from the handler's task, if it is plain and may be sent."""
    if type(item) not in PLAIN or not request.may_send():
        return False
    try:
        text = encoded(item)
    except Exception:
        return False  # the stream's task has to know
    tick()
    put(text)
    return True
