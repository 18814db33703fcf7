"""Bare loops, which http.py compares Shoal's applications with.

They are careful handwritten code without bounds, counters, validation, errors other than a 500, or
handling of clients that disconnect. They speak ASGI themselves, on the floor of http_floor.py,
which passes each body whole. See http_bare_model.py for those of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import orjson
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

import shoal
from benchmarks.http_handlers import (
    BATCH_WAIT_TIMEOUT_S,
    MAX_BATCH_SIZE,
    at_once,
    noop,
    paced,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import Receive, Scope, Send

STARTED: Final = {"type": "lifespan.startup.complete"}


async def noop_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Calls a `shoal.Batcher` with each body."""
    global _call
    if scope["type"] == "lifespan":
        async with shoal.Batcher(noop, max_batch_size=MAX_BATCH_SIZE) as _call:
            await send(STARTED)
            await trio.sleep_forever()
    item = orjson.loads((await receive())["body"])
    body = orjson.dumps(await _call(item))
    await answer_json(send, body)


async def answer_json(send: Send, body: bytes) -> None:
    """Sends an answer."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode("ascii")),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_call: Callable[[Any], Awaitable[Any]]

T = TypeVar("T")


def aborted(_: object) -> Abort:
    """Allows a wait to be cancelled, which happens only when the process ends."""
    return Abort.SUCCEEDED


class TokenStream:
    """The tokens that one request has not sent yet."""

    __slots__ = ("_reader", "_tokens", "is_ended", "item")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.is_ended = False
        self._tokens: list[str] = []
        self._reader: Task | None = None

    def put(self, token: str) -> None:
        self._tokens.append(token)
        self._wake()

    def end(self) -> None:
        self.is_ended = True
        self._wake()

    async def take(self) -> list[str]:
        """Waits for tokens or the end; returns all tokens that are there."""
        if not self._tokens and not self.is_ended:
            self._reader = current_task()
            await wait_task_rescheduled(aborted)
        tokens, self._tokens = self._tokens, []
        return tokens

    def _wake(self) -> None:
        if self._reader is not None:
            reschedule(self._reader)
            self._reader = None


class Gathered(Generic[T]):
    """A queue from which one task takes batches.

    Args:
        wait_s: How long a batch waits for more, in seconds, after it could begin.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._queue: list[T] = []
        self._taker: Task | None = None

    def add(self, one: T) -> None:
        self._queue.append(one)
        # Only the first one, and the last one of a full batch, are worth waking the task.
        if self._taker is not None and len(self._queue) in (1, MAX_BATCH_SIZE):
            taker, self._taker = self._taker, None
            reschedule(taker)

    async def batch(self) -> list[T]:
        if not self._queue:
            await self._more()
        if self._wait_s:
            with trio.move_on_after(self._wait_s):
                while len(self._queue) < MAX_BATCH_SIZE:
                    await self._more()
        batch = self._queue[:MAX_BATCH_SIZE]
        del self._queue[:MAX_BATCH_SIZE]
        return batch

    async def _more(self) -> None:
        self._taker = current_task()
        await wait_task_rescheduled(self._given_up)

    def _given_up(self, _: object) -> Abort:
        """Ends the wait: from now on no request may wake the task, which is awake."""
        self._taker = None
        return Abort.SUCCEEDED


class TokenLoop:
    """Answers with the tokens of a handler as server-sent events, in batches.

    Args:
        handler: The handler.
        wait_s: See `Gathered`.
    """

    def __init__(
        self, handler: Callable[[list[Any]], AsyncIterator[list[str]]], wait_s: float = 0
    ) -> None:
        self._handler = handler
        self._queue = Gathered[TokenStream](wait_s)

    async def run(self) -> None:
        while True:
            batch = await self._queue.batch()
            async for tokens in self._handler([stream.item for stream in batch]):
                for stream, token in zip(batch, tokens, strict=True):
                    stream.put(token)
            for stream in batch:
                stream.end()

    async def answer(self, receive: Receive, send: Send) -> None:
        stream = TokenStream(orjson.loads((await receive())["body"]))
        self._queue.add(stream)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        more = True
        while more:
            events = [b"data: %s\n\n" % orjson.dumps(token) for token in await stream.take()]
            if stream.is_ended:
                events.append(b"event: end\ndata: {}\n\n")
                more = False
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": more})


_TOKEN_LOOPS: Final = {
    "/paced": TokenLoop(paced, BATCH_WAIT_TIMEOUT_S),  # or the clients fall into two groups
    "/at-once": TokenLoop(at_once),
}


async def tokens_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with tokens."""
    if scope["type"] == "lifespan":
        async with trio.open_nursery() as nursery:
            for loop in _TOKEN_LOOPS.values():
                nursery.start_soon(loop.run)
            await send(STARTED)
    await _TOKEN_LOOPS[scope["path"]].answer(receive, send)
