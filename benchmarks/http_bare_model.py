"""Bare loops around the model that blocks, which http.py compares Shoal's application with.

``app`` is what one writes with Starlette. ``floor_app`` speaks ASGI itself, on http_floor.py, and
is the least that a loop which runs the model in a thread can do. Both take what is in their queue
at once, and wait for more until `BATCH_WAIT_TIMEOUT_S` after the first item.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from outcome import Value
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from trio.lowlevel import Task, current_task, reschedule, wait_task_rescheduled

from benchmarks.http_bare import STARTED, Gathered, TokenLoop, aborted, answer_json
from benchmarks.http_handlers import (
    BATCH_WAIT_TIMEOUT_S,
    MAX_BATCH_SIZE,
    MODEL_TOKENS,
    generate,
    predict,
    work,
)
from benchmarks.http_statistics import statistics_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send


async def next_batch(queue: trio.MemoryReceiveChannel[Any]) -> list[Any]:
    """Takes all that is in a queue, and waits for more for a short time."""
    batch = [await queue.receive()]
    with trio.move_on_after(BATCH_WAIT_TIMEOUT_S):
        while len(batch) < MAX_BATCH_SIZE:
            try:
                batch.append(queue.receive_nowait())
            except trio.WouldBlock:
                batch.append(await queue.receive())
    return batch


def _starlette_app() -> Starlette:
    to_predict, predict_queue = trio.open_memory_channel[Any](100_000)
    to_generate, generate_queue = trio.open_memory_channel[Any](100_000)

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

    async def statistics(_: Request) -> JSONResponse:
        return JSONResponse(work)

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
            Route("/statistics", statistics),
        ],
        lifespan=lifespan,
    )


app: Final = _starlette_app()


class _PredictLoop:
    """Answers with the model's results, in batches."""

    def __init__(self) -> None:
        # Each waiting request: its item and its task.
        self._queue = Gathered[tuple[Any, Task]](BATCH_WAIT_TIMEOUT_S)

    async def run(self) -> None:
        while True:
            batch = await self._queue.batch()
            results = await trio.to_thread.run_sync(predict, [item for item, _ in batch])
            for (_, task), result in zip(batch, results, strict=True):
                reschedule(task, Value(result))

    async def answer(self, receive: Receive, send: Send) -> None:
        item = orjson.loads((await receive())["body"])
        self._queue.add((item, current_task()))
        result = await wait_task_rescheduled(aborted)
        await answer_json(send, orjson.dumps(result))


async def _generated(items: list[Any]) -> AsyncIterator[list[str]]:
    """Runs the steps of the model in a thread."""
    step = partial(next, generate(items), None)
    while (tokens := await trio.to_thread.run_sync(step)) is not None:
        yield tokens


_predict_loop: Final = _PredictLoop()
_token_loop: Final = TokenLoop(_generated, BATCH_WAIT_TIMEOUT_S)


async def floor_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers as an ASGI application."""
    if scope["type"] == "lifespan":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_predict_loop.run)
            nursery.start_soon(_token_loop.run)
            await send(STARTED)
    match scope["path"]:
        case "/predict":
            await _predict_loop.answer(receive, send)
        case "/generate":
            await _token_loop.answer(receive, send)
        case _:
            await statistics_page(scope, receive, send)
