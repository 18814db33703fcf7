"""Types of batches that take requests while their handler runs; checked, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncIterator, Mapping
from typing import Any, assert_type

import shoal
from shoal import (
    BatchedFunction,
    BatchedGenerator,
    Batcher,
    OpenBatch,
    OpenRequest,
    ResultStream,
    StreamCall,
    UnaryCall,
)


async def handler(batch: OpenBatch[int, str]) -> None:
    async for request in batch:
        assert_type(request, OpenRequest[int, str])
        request.finish(str(request.item))


async def in_steps(batch: OpenBatch[int, str]) -> None:
    assert_type(batch.steps(), AsyncIterator[list[OpenRequest[int, str]]])
    async for joined in batch.steps():
        assert_type(joined, list[OpenRequest[int, str]])
        for request in batch.active:
            assert_type(request, OpenRequest[int, str])
            await request.send(str(request.item))
            request.finish()


async def what_a_batch_tells(batch: OpenBatch[int, str], request: OpenRequest[int, str]) -> None:
    assert_type(batch.id, int)
    assert_type(batch.size, int)
    assert_type(batch.reason, shoal.DispatchReason)
    assert_type(batch.active, list[OpenRequest[int, str]])
    assert_type(batch.join_nowait(), list[OpenRequest[int, str]])
    assert_type(await batch.join(), list[OpenRequest[int, str]])
    assert_type(await anext(aiter(batch)), OpenRequest[int, str])
    assert_type(request.item, int)
    assert_type(request.cancelled, bool)
    assert_type(request.ended, bool)
    assert_type(request.metadata, Mapping[str, Any])
    assert_type(request.deadline, float | None)
    assert_type(request.priority, int)
    assert_type(request.cost, float)
    assert_type(request.arrived_at, float)
    request.finish("result")
    request.finish()
    request.fail(ValueError("its own"))
    request.finish(1)  # type: ignore[arg-type]
    await request.send(1)  # type: ignore[arg-type]
    request.fail("no exception")  # type: ignore[arg-type]


async def faces() -> None:
    assert_type(Batcher(handler, fill="open"), Batcher[UnaryCall[[int], str]])
    assert_type(
        Batcher(handler, fill="continuous", streams=False, max_batch_size=4, name="it"),
        Batcher[UnaryCall[[int], str]],
    )
    assert_type(Batcher(in_steps, fill="continuous", streams=True), Batcher[StreamCall[[int], str]])
    async with Batcher(handler, fill="open", idle_timeout_s=1) as call:
        assert_type(await call(1), str)
        assert_type(await call.map([1]), list[str])
        assert_type(await call.options(priority=1)(1), str)
        await call("1")  # type: ignore[arg-type]
    async with Batcher(in_steps, fill="continuous", streams=True) as stream_call:
        assert_type(stream_call(1), ResultStream[str])
        async with stream_call(1) as stream:
            async for item in stream:
                assert_type(item, str)


@shoal.batch(fill="open")
async def opened(batch: OpenBatch[int, str]) -> None:
    async for request in batch:
        request.finish(str(request.item))


@shoal.batch(fill="continuous", streams=True)
async def tokens(batch: OpenBatch[int, str]) -> None:
    async for _ in batch.steps():
        for request in batch.active:
            await request.send(str(request.item))


class Model:
    @shoal.batch(fill="open", batch_wait_timeout_s=1)
    async def predict(self, batch: OpenBatch[int, str]) -> None:
        async for request in batch:
            request.finish(str(request.item))

    @shoal.batch(fill="continuous", streams=True)
    async def tokens(self, batch: OpenBatch[int, str]) -> None:
        async for request in batch:
            await request.send(str(request.item))
            request.finish()


async def decorated(model: Model) -> None:
    assert_type(opened, BatchedFunction[[int], str])
    assert_type(tokens, BatchedGenerator[[int], str])
    assert_type(await opened(1), str)
    assert_type(await opened.map([1, 2]), list[str])
    assert_type(await opened.options(timeout_s=1)(1), str)
    assert_type(opened.from_thread(1), str)
    assert_type(tokens(1), ResultStream[str])
    assert_type(await model.predict(1), str)
    assert_type(await model.predict.map([1]), list[str])
    assert_type(await Model.predict(model, 1), str)
    assert_type(model.tokens(1), ResultStream[str])
    async with shoal.open_batchers(opened, tokens, model.predict, model.tokens):
        model.predict.set_max_batch_size(3)
    await opened("1")  # type: ignore[arg-type]
    await model.predict("1")  # type: ignore[arg-type]
    tokens("1")  # type: ignore[arg-type]


def threads() -> None:
    with shoal.blocking(opened) as call:
        assert_type(call(1), str)
    with shoal.blocking(tokens) as call_stream, call_stream(1) as stream:
        assert_type(next(stream), str)


def two(left: int, right: str = "") -> bytes:
    return right.encode() * left


@shoal.batch(signature=two, fill="open")
async def named(batch: OpenBatch[tuple[int, str], bytes]) -> None:
    async for request in batch:
        left, right = request.item
        assert_type(left, int)
        assert_type(right, str)
        request.finish(b"")


async def with_signatures() -> None:
    assert_type(await named(1), bytes)
    assert_type(await named(right="2", left=1), bytes)


@shoal.batch(fill="open")  # type: ignore[arg-type]
async def of_lists(items: list[int]) -> list[str]:
    return [str(item) for item in items]


app = shoal.App()


@app.endpoint("/tokens", fill="continuous", streams=True)
async def served(batch: OpenBatch[int, str]) -> None:
    async for request in batch:
        request.finish()
