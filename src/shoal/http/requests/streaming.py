"""Streams of results over HTTP.

The response begins with the first item, so that a call which fails before has an error status. It
begins no later than the first heartbeat, so that the client gets a sign of life. The codec gives
the form of the messages (`shoal.http.requests.protocol`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from shoal.batching.calls.leaving import CallerLeft, run_unless_left
from shoal.batching.calls.stream import ResultStream
from shoal.errors import ShutDown

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem
    from shoal.http.requests.protocol import StreamForm


# A stream is not stored, and a proxy is asked not to buffer it.
UNBUFFERED: Final = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))

# The types of items that are written without running the user's code.
PLAIN: Final = frozenset({str, int, float, bool, NoneType})


class ItemStream(AbstractAsyncContextManager[Any], AsyncIterable[Any], Protocol):
    async def __anext__(self) -> Any: ...
    def ready(self) -> list[Any]:
        """Takes the items that are there already, without waiting."""
        ...


async def respond_with_stream(
    exchange: Exchange,
    stream: ItemStream,
    form: StreamForm,
    tick: Callable[[], object] = lambda: None,
    encode: Callable[[Any], Any] | None = None,
    explain: Callable[[Exception], Problem] | None = None,
) -> None:
    """Makes a call and sends its items; raises its errors until the response has begun."""
    # `tick` counts an item, and `encode` converts it. `explain` returns the problem of an error in
    # mid-stream; `Exchange.explained` by default.
    explain = explain or exchange.explained
    failure: Problem | None = None
    relay = _Relay(exchange, stream, form, tick, encode)
    last = b""
    try:
        last = await relay.run()
    except CallerLeft:
        if exchange.status == 0 or not exchange.is_cut_off:
            raise
        failure = explain(ShutDown("the server ends"))
    except Exception as error:
        if exchange.status == 0:
            raise
        failure = explain(error)
    end = last + (form.end() if failure is None else form.error(failure, exchange.request_id))
    if exchange.status == 0:
        await exchange.begin(200, headers_of(form))
        end = form.start + end
    await exchange.end(end)
    if failure is not None:
        exchange.status = failure.status  # for the metrics


@dataclass(slots=True)
class _Relay:
    """Sends the items of a stream; returns the message to send once the call has ended."""

    # A message that ends the stream before its call is sent after the call, so that no client can
    # hold up the end of its call.

    exchange: Exchange
    stream: ItemStream
    form: StreamForm
    tick: Callable[[], object]
    encode: Callable[[Any], Any] | None

    async def run(self) -> bytes:
        """Raises `CallerLeft` if the client leaves."""
        when_left, results = self.exchange.when_left, _of_results(self.stream)
        if results is None or self.exchange.heartbeat is None:
            return await run_unless_left(when_left, self._run)
        # As for any call of a batcher, since the server's sends end once the client has left.
        # On trio a scope takes a tenth of the time of a stream with one item.
        left: list[bool] = []

        def leave() -> None:
            left.append(True)
            results.leave()

        try:
            when_left(leave)
            last = await self._run()
        finally:
            when_left(None)
        if left:
            raise CallerLeft("the caller left before its stream had ended")
        return last

    async def _run(self) -> bytes:
        async with self.stream:
            return await self._send_items()

    def _message(self, item: Any) -> bytes:
        message = self.form.item(item if self.encode is None else self.encode(item))
        self.tick()
        return message

    async def _send_items(self) -> bytes:
        """Sends the items, with heartbeats between them; returns the last message, or none."""
        exchange, form = self.exchange, self.form
        heartbeat_s = exchange.options.heartbeat_s
        pending: bytes | None = None
        while True:
            # One scope, with a moving deadline, for many waits and sends: a scope for each of them
            # costs as much as all the rest of this loop. It is replaced once its deadline has
            # passed.
            limit_s = heartbeat_s if pending is None else exchange.send_timeout_s
            with anyio.move_on_after(limit_s) as scope:
                while True:
                    if pending is None:
                        try:
                            item = await anext(self.stream)
                        except StopAsyncIteration:
                            return b""
                        pending = self._message(item)
                        if form.is_over:
                            return pending
                        if scope.cancel_called:
                            break  # the item arrived at the deadline
                        scope.deadline = anyio.current_time() + exchange.send_timeout_s
                    if exchange.status == 0:
                        await exchange.begin(200, headers_of(form))
                        pending = form.start + pending
                    if pending:
                        await exchange.piece(pending)
                    pending = None
                    if exchange.heartbeat is not None:
                        # The server sends them from now on, so the rest needs no scope.
                        scope.deadline = math.inf
                        exchange.heartbeat(heartbeat_s, form.heartbeat)
                        return await self._send_rest()
                    scope.deadline = anyio.current_time() + heartbeat_s
            if scope.cancelled_caught:
                if pending is not None:
                    raise exchange.gave_up()
                pending = form.heartbeat if exchange.status else form.first_heartbeat()

    async def _send_rest(self) -> bytes:
        """Sends the rest; the items that are there already are sent together."""
        exchange, form, stream = self.exchange, self.form, self.stream
        results = _of_results(stream)
        if results is not None and exchange.direct is not None:
            self._let_the_handler_send(results, *exchange.direct)
        async for item in stream:
            pieces: list[bytes] = []
            try:
                pieces.append(self._message(item))
                for further in () if form.is_over else stream.ready():
                    pieces.append(self._message(further))
                    if form.is_over:
                        break
            except Exception:  # the items before one that can't be written are sent
                if pieces:
                    await exchange.piece(b"".join(pieces))
                raise
            message = b"".join(pieces)
            if form.is_over or (results is not None and results.is_finished):
                return message
            if message:
                await exchange.piece(message)
        return b""

    def _let_the_handler_send(
        self,
        results: ResultStream[Any],
        has_room: Callable[[], bool],
        put: Callable[[bytes], object],
    ) -> None:
        """Makes the handler's task send the plain items for which the client has room."""
        # That costs half as much as a switch to the stream's task for each item. It is possible
        # where no middleware is between this and the server.
        form, tick = self.form, self.tick

        def send(item: Any) -> bool:
            if type(item) not in PLAIN or not has_room():
                return False
            try:
                message = form.item(item)
            except Exception:
                return False  # the reader's task has to know
            tick()
            if message:
                put(message)
            if form.is_over:
                results.leave()  # wakes the reader
            return True

        if not form.runs_users_code and self.encode is None:
            results.pass_on(send)


def _of_results(stream: object) -> ResultStream[Any] | None:
    return stream if isinstance(stream, ResultStream) else None  # pyright: ignore[reportUnknownVariableType]


def headers_of(form: StreamForm) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", form.media_type), *UNBUFFERED, *form.headers]
