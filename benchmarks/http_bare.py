"""Bare loops, which http.py compares Shoal's applications with.

They are typical handwritten code: no bounds, counters, validation, errors other than a 500, or
handling of clients that disconnect. The model is under Starlette and its loops are on trio; the
others speak ASGI themselves, on the floor of http_floor.py, which passes each body whole.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Mount, Route
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

import shoal
from benchmarks.http_handlers import (
    BATCH_WAIT_TIMEOUT_S,
    MAX_BATCH_SIZE,
    MODEL_TOKENS,
    at_once,
    generate,
    noop,
    paced,
    predict,
)
from benchmarks.http_statistics import statistics_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

_STARTED: Final = {"type": "lifespan.startup.complete"}


async def noop_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Calls a `shoal.Batcher` with each body."""
    global _call
    if scope["type"] == "lifespan":
        async with shoal.Batcher(noop, max_batch_size=MAX_BATCH_SIZE) as _call:
            await send(_STARTED)
            await trio.sleep_forever()
    item = orjson.loads((await receive())["body"])
    body = orjson.dumps(await _call(item))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode("ascii")),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_call: Callable[[Any], Awaitable[Any]]


def _aborted(_: object) -> Abort:
    """Allows a wait to be cancelled, which happens only when the process ends."""
    return Abort.SUCCEEDED


class _Stream:
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
            await wait_task_rescheduled(_aborted)
        tokens, self._tokens = self._tokens, []
        return tokens

    def _wake(self) -> None:
        if self._reader is not None:
            reschedule(self._reader)
            self._reader = None


class _TokenLoop:
    """Answers with the tokens of a handler as server-sent events, in batches."""

    def __init__(self, handler: Callable[[list[Any]], AsyncIterator[list[str]]]) -> None:
        self._handler = handler
        self._queue: list[_Stream] = []
        self._idle: Task | None = None

    async def run(self) -> None:
        while True:
            if not self._queue:
                self._idle = current_task()
                await wait_task_rescheduled(_aborted)
            batch = self._queue[:MAX_BATCH_SIZE]
            del self._queue[:MAX_BATCH_SIZE]
            async for tokens in self._handler([stream.item for stream in batch]):
                for stream, token in zip(batch, tokens, strict=True):
                    stream.put(token)
            for stream in batch:
                stream.end()

    async def answer(self, receive: Receive, send: Send) -> None:
        stream = _Stream(orjson.loads((await receive())["body"]))
        self._queue.append(stream)
        if self._idle is not None:
            reschedule(self._idle)
            self._idle = None
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        more = True
        while more:
            events = [b"data: %s\n\n" % orjson.dumps(token) for token in await stream.take()]
            if stream.is_ended:
                events.append(b"event: end\ndata: {}\n\n")
                more = False
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": more})


_TOKEN_LOOPS: Final = {"/paced": _TokenLoop(paced), "/at-once": _TokenLoop(at_once)}


async def tokens_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with tokens."""
    if scope["type"] == "lifespan":
        async with trio.open_nursery() as nursery:
            for loop in _TOKEN_LOOPS.values():
                nursery.start_soon(loop.run)
            await send(_STARTED)
    await _TOKEN_LOOPS[scope["path"]].answer(receive, send)


def _model_app() -> ASGIApp:
    to_predict, predict_queue = trio.open_memory_channel[Any](100_000)
    to_generate, generate_queue = trio.open_memory_channel[Any](100_000)

    async def next_batch(queue: trio.MemoryReceiveChannel[Any]) -> list[Any]:
        batch = [await queue.receive()]
        with trio.move_on_after(BATCH_WAIT_TIMEOUT_S):
            while len(batch) < MAX_BATCH_SIZE:
                batch.append(await queue.receive())
        return batch

    async def predict_loop() -> None:
        while True:
            batch = await next_batch(predict_queue)
            results = await trio.to_thread.run_sync(predict, [item for item, _, _ in batch])
            for (_, box, done), result in zip(batch, results, strict=True):
                box.append(result)
                done.set()

    async def generate_loop() -> None:
        while True:
            batch = await next_batch(generate_queue)
            steps = generate([item for item, _ in batch])
            while (slots := await trio.to_thread.run_sync(next, steps, None)) is not None:
                for (_, tokens), slot in zip(batch, slots, strict=True):
                    tokens.send_nowait(slot)
            for _, tokens in batch:
                tokens.close()

    async def predict_one(request: Request) -> JSONResponse:
        box: list[Any] = []
        done = trio.Event()
        await to_predict.send((await request.json(), box, done))
        await done.wait()
        return JSONResponse(box[0])

    async def generate_one(request: Request) -> StreamingResponse:
        tokens, read = trio.open_memory_channel[str](MODEL_TOKENS)
        await to_generate.send((await request.json(), tokens))

        async def events() -> AsyncIterator[str]:
            async for token in read:
                yield f"data: {json.dumps(token)}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(predict_loop)
            nursery.start_soon(generate_loop)
            yield
            nursery.cancel_scope.cancel()

    return Starlette(
        routes=[
            Route("/predict", predict_one, methods=["POST"]),
            Route("/generate", generate_one, methods=["POST"]),
            Mount("/statistics", statistics_page),
        ],
        lifespan=lifespan,
    )


model_app: Final = _model_app()
