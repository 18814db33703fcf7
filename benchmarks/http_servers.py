"""The servers that http.py compares: the same model with Shoal, and with a bare batching loop.

``python -m benchmarks.http_servers bare`` (or ``shoal``) serves one on Hypercorn's trio worker, at
a port that it prints, until SIGTERM. The bare one is a typical handwritten server: two loops of a
few lines under Starlette, without bounds, counters, validation, errors other than a 500, or
handling of clients that disconnect.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import hypercorn.trio
import trio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import shoal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BATCH_SIZE: Final = 64
BATCH_WAIT_TIMEOUT_S: Final = 0.002
TOKENS: Final = 32

# The model's statistics, which the benchmark reads.
work: Final = {"batches": 0, "items": 0, "stream_batches": 0, "streams": 0}


def predict(items: list[dict[str, int]]) -> list[dict[str, int]]:
    """A blocking model: 2 ms per batch and 0.05 ms per item."""
    work["batches"] += 1
    work["items"] += len(items)
    time.sleep(0.002 + 0.00005 * len(items))
    return [{"value": 2 * item["value"]} for item in items]


def generate(items: list[dict[str, int]]) -> Iterator[list[str]]:
    """A blocking model: 2 ms per step, with a token for each prompt."""
    work["stream_batches"] += 1
    work["streams"] += len(items)
    for nth in range(TOKENS):
        time.sleep(0.002)
        yield [f"token {nth}"] * len(items)


def shoal_application() -> ASGIApp:
    """Returns the application with Shoal."""
    app: Any = shoal.App()
    options: Any = {"max_batch_size": MAX_BATCH_SIZE, "batch_wait_timeout_s": BATCH_WAIT_TIMEOUT_S}
    app.endpoint("/predict", **options)(predict)
    app.endpoint("/generate", **options)(generate)
    application: ASGIApp = app
    return application


def bare_application() -> ASGIApp:
    """Returns the application with handwritten loops."""
    to_predict, predict_line = trio.open_memory_channel[Any](100_000)
    to_generate, generate_line = trio.open_memory_channel[Any](100_000)

    async def next_batch(line: trio.MemoryReceiveChannel[Any]) -> list[Any]:
        batch = [await line.receive()]
        with trio.move_on_after(BATCH_WAIT_TIMEOUT_S):
            while len(batch) < MAX_BATCH_SIZE:
                batch.append(await line.receive())
        return batch

    async def predict_loop() -> None:
        while True:
            batch = await next_batch(predict_line)
            results = await trio.to_thread.run_sync(predict, [item for item, _, _ in batch])
            for (_, box, done), result in zip(batch, results, strict=True):
                box.append(result)
                done.set()

    async def generate_loop() -> None:
        while True:
            batch = await next_batch(generate_line)
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
        tokens, read = trio.open_memory_channel[str](TOKENS)
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
        ],
        lifespan=lifespan,
    )


def with_statistics(app: ASGIApp) -> ASGIApp:
    """Adds ``/statistics``: the model's statistics, and the CPU seconds of the process."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/statistics":
            answer = JSONResponse({**work, "cpu_s": time.process_time()})
            await answer(scope, receive, send)
        else:
            await app(scope, receive, send)

    return application


async def serve(app: ASGIApp) -> None:
    """Serves on Hypercorn's trio worker until SIGTERM."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None

    async def terminated() -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                return

    async with trio.open_nursery() as nursery:
        # Starlette and Hypercorn have different types for the same ASGI interface.
        framework: Any = app
        run: Callable[..., Any] = partial(
            hypercorn.trio.serve, framework, config, shutdown_trigger=terminated
        )
        [url] = await nursery.start(run)
        print(f"serving on {url}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    made = shoal_application() if sys.argv[1] == "shoal" else bare_application()
    trio.run(serve, with_statistics(made))
