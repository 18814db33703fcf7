"""Code in a process calls other backends, by its parent; see `serving/test_composition.py`."""

from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from replicas.playing import made, playing
from replicas.process_backends import Async, Plain
from shoal.replicas.code.endpoint_call import CallOut

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

STREAMS = [
    (Plain, "stream_out"),
    pytest.param(Async, "stream_out", marks=pytest.mark.one_loop),
    (Async, "stream_out_async"),
]


class Others:
    """What stands for other backends."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.was_cancelled = anyio.Event()
        self.made = 0

    async def make(self, call: CallOut) -> Any:
        assert call.endpoint == "other"
        [item] = call.args
        if call.stream:
            return self.steps(item)
        return item if isinstance(item, np.ndarray) else lambda: None

    @asynccontextmanager
    async def steps(self, item: Any):
        async def generate():
            for step in range(item if isinstance(item, int) else 1):
                self.made += 1
                yield step
            if item == "wait":
                self.began.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    self.was_cancelled.set()
            if item == "fail":
                raise LookupError("of the other")

        steps = generate()
        try:
            yield steps
        finally:
            await steps.aclose()


@asynccontextmanager
async def calling(code: type):
    others = Others()
    replica = made(code)
    replica.on_call_out = others.make
    async with playing(replica) as played:
        yield played, others


@pytest.mark.one_loop
@pytest.mark.parametrize(("code", "method"), STREAMS)
async def test_a_stream_of_a_call_goes_through_step_by_step(code, method):
    async with calling(code) as (played, others):
        assert await played.steps(method, [50]) == [[step] for step in range(50)]
        steps = played.replica.run_stream(method, [1000])
        await anext(steps)
        await steps.aclose()
        assert others.made < 100
        with pytest.raises(LookupError):
            [step async for step in played.replica.run_stream(method, ["fail"])]


@pytest.mark.parametrize(("code", "method"), STREAMS)
async def test_cancelling_the_work_leaves_its_stream(code, method):
    async with calling(code) as (played, others):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(played.steps, method, ["wait"])
            await others.began.wait()
            tasks.cancel_scope.cancel()
        await others.was_cancelled.wait()
        assert await played.run("__call__", [3]) == [6]


@pytest.mark.one_loop
@pytest.mark.parametrize(("code", "method"), [(Plain, "call_out"), (Async, "call_out_async")])
async def test_an_array_comes_back_and_what_can_not_be_sent_fails_its_call(code, method):
    async with calling(code) as (played, _others):
        [array] = await played.run(method, [np.arange(100_000)])
        np.testing.assert_array_equal(array, np.arange(100_000))
        with pytest.raises(TypeError, match="the result of 'other' can't be sent"):
            await played.run(method, [1])


@pytest.mark.one_loop
async def test_a_call_that_nobody_makes_is_refused():
    async with playing(made()) as played:
        with pytest.raises(RuntimeError, match="can't call endpoints"):
            await played.run("call_out", [1])


async def test_a_worker_that_dies_has_its_calls_cancelled():
    async with calling(Plain) as (played, others):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(played.steps, "stream_out", ["wait"])
            await others.began.wait()
            played.replica.kill("enough")
        await others.was_cancelled.wait()
