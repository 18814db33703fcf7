"""Streams of results over HTTP.

The answer begins with the first item, so that a call which fails before has an error status. But it
begins no later than the first heartbeat, so that the client gets a sign of life. The form of the
messages is the codec's; see `shoal.http.requests.codec`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from shoal.batching.calls.leaving import CallerLeft, run_unless_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.http.requests.codec import StreamForm
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem
    from shoal.serving.clients.protocol import ResultIterator


async def answer_with_stream(
    exchange: Exchange,
    stream: ResultIterator,
    form: StreamForm,
    explain: Callable[[Exception], Problem],
    heartbeat_s: float,
) -> None:
    """Makes a call and sends its items as they are produced.

    Args:
        exchange: The request to answer; its body has been read.
        stream: The stream of the call, not yet started.
        form: The form of its messages.
        explain: Returns the problem for an error in mid-stream, and logs it.
        heartbeat_s: How long the answer may be silent, in seconds.

    Raises:
        CallerLeft: The client is gone, or did not read in time; the call was cancelled.
        Exception: The call failed before its answer had begun.
    """
    if exchange.wants_no_body:
        await exchange.answer_without_body(200, _headers(form))
        return

    async def send_items() -> None:
        async with stream:
            await _relay(exchange, stream, form, heartbeat_s)

    failure: Problem | None = None
    try:
        await run_unless_left(exchange.client_left, send_items)
    except CallerLeft:
        raise
    except Exception as error:
        if exchange.status == 0:
            raise
        failure = explain(error)
    if exchange.status == 0:
        await _begin(exchange, form)
    await exchange.end(form.end() if failure is None else form.error(failure, exchange.request_id))


async def _relay(
    exchange: Exchange, stream: ResultIterator, form: StreamForm, heartbeat_s: float
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
                    pending = form.item(item)
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


async def _begin(exchange: Exchange, form: StreamForm) -> None:
    await exchange.begin(200, _headers(form))


def _headers(form: StreamForm) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", form.media_type),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # asks a proxy not to buffer items
    ]
