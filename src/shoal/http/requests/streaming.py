"""Streams of results over HTTP: as server-sent events, or as JSON lines.

The two forms differ only in framing. Both have three distinct messages: an item, the end, an error.
A stream that ends without one of the last two is incomplete, and its reader can tell. Server-sent
events have names for that (``event: end``, ``event: error``; items are unnamed). JSON lines have no
names, so each line is an object whose only key is the type of message; with bare items no value
could mark the end.

The answer begins with the first item, so that a call which fails before has an error status. But it
begins no later than the first heartbeat, so that the client gets a sign of life. Clients choose the
form by ``Accept``: JSON lines if it names them and does not rank them below server-sent events,
else server-sent events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from shoal.http.requests.disconnect import run_unless_client_leaves
from shoal.http.requests.exchange import ClientLeft
from shoal.http.requests.payload import encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem
    from shoal.serving.clients.protocol import ResultIterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The format of a stream.

    Attributes:
        media_type: The media type.
        item: The prefix of an item's JSON.
        error: The prefix of the JSON of the problem with which a stream fails.
        close: The suffix of either.
        end: The message that the stream has ended.
        heartbeat: A message that readers skip.
    """

    media_type: bytes
    item: bytes
    error: bytes
    close: bytes
    end: bytes
    heartbeat: bytes


SERVER_SENT_EVENTS: Final = Form(
    media_type=b"text/event-stream",
    item=b"data: ",
    error=b"event: error\ndata: ",
    close=b"\n\n",
    # A browser's EventSource drops an event that has no data.
    end=b"event: end\ndata: {}\n\n",
    heartbeat=b":\n\n",
)

JSON_LINES: Final = Form(
    media_type=b"application/x-ndjson",
    item=b'{"item":',
    error=b'{"error":',
    close=b"}\n",
    end=b'{"end":true}\n',
    heartbeat=b"\n",
)


def form_for(accept: bytes) -> Form:
    """Returns the form that a client accepts.

    Args:
        accept: The request's ``Accept`` header; empty if it has none.
    """
    if not accept or accept == b"*/*":
        return SERVER_SENT_EVENTS
    weights = _weights(accept)
    lines = max(weights.get(b"application/x-ndjson", 0.0), weights.get(b"application/ndjson", 0.0))
    events = weights.get(b"text/event-stream", 0.0)
    return JSON_LINES if lines > 0 and lines >= events else SERVER_SENT_EVENTS


async def answer_with_stream(
    exchange: Exchange,
    stream: ResultIterator,
    explain: Callable[[Exception], Problem],
    heartbeat_s: float,
) -> None:
    """Makes a call and sends its items as they are produced.

    Args:
        exchange: The request to answer; its body has been read.
        stream: The stream of the call, not yet started.
        explain: Returns the problem for an error in mid-stream, and logs it.
        heartbeat_s: How long the answer may be silent, in seconds.

    Raises:
        ClientLeft: The client is gone, or did not read in time; the call was cancelled.
        Exception: The call failed before its answer had begun.
    """
    form = form_for(exchange.headers.get(b"accept", b""))
    if exchange.wants_no_body:
        await exchange.answer_without_body(200, _headers(form))
        return

    async def send_items() -> None:
        async with stream:
            await _relay(exchange, stream, form, heartbeat_s)

    last = form.end
    try:
        await run_unless_client_leaves(exchange.receive, send_items)
    except ClientLeft:
        raise
    except Exception as error:
        if exchange.status == 0:
            raise
        problem = encoded(explain(error).members(exchange.request_id))
        last = form.error + problem + form.close
    if exchange.status == 0:
        await _begin(exchange, form)
    await exchange.end(last)


async def _relay(
    exchange: Exchange, stream: ResultIterator, form: Form, heartbeat_s: float
) -> None:
    """Sends the items of a stream, with heartbeats between them, until the stream ends."""
    pending: bytes | None = None
    while True:
        # One scope for many waits and sends, whose deadline is moved: a scope for each of them
        # costs as much as all the rest of this loop. It is replaced once its deadline has passed.
        with anyio.CancelScope() as scope:
            while True:
                if pending is None:
                    scope.deadline = anyio.current_time() + heartbeat_s
                    try:
                        item = await anext(stream)
                    except StopAsyncIteration:
                        return
                    pending = form.item + encoded(item) + form.close
                    if scope.cancel_called:
                        break  # the item arrived at the deadline
                scope.deadline = anyio.current_time() + exchange.send_timeout_s
                if exchange.status == 0:
                    await _begin(exchange, form)
                await exchange.piece(pending)
                pending = None
        if scope.cancelled_caught:
            if pending is not None:
                raise exchange.gave_up()
            pending = form.heartbeat


async def _begin(exchange: Exchange, form: Form) -> None:
    await exchange.begin(200, _headers(form))


def _headers(form: Form) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", form.media_type),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # asks a proxy not to buffer items
    ]


def _weights(accept: bytes) -> dict[bytes, float]:
    weights: dict[bytes, float] = {}
    for media_range in accept.lower().split(b","):
        name, *parameters = (part.strip() for part in media_range.split(b";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        weights[name] = weight
    return weights
