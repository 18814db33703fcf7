"""Large arrays and bytes on their way to a process and back, and its calls of other backends."""

import gc
import random
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

from replicas.playing import made, noted, playing
from replicas.process_backends import Async, Made, Plain
from shoal.replicas.code.endpoint_call import CallOut

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

ARRAY = 5_000  # 40 kB of float64: beside the pickle, but copied in the event loop
LARGE = 1_100_000  # 8.8 MB: copied in a thread
ROOM = 12 * 2**20


def used(played) -> int:
    """The shared memory for requests that is not given back."""
    return played.replica._conversation.codec.outgoing.used


def arrays(size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [
        rng.random(size),
        rng.integers(0, 100, size, dtype="u1").reshape(2, -1),
        np.asfortranarray(rng.random((2, size))),
        rng.random(2 * size)[::2],
        np.array(["text", None], dtype=object),
    ]


@pytest.mark.parametrize(
    ("anyio_backend", "code", "shared_memory_bytes"),
    [("trio", Plain, 0), ("trio", Async, ROOM), ("asyncio", Plain, ROOM), ("asyncio", Async, 0)],
    indirect=["anyio_backend"],
)
async def test_arrays_and_bytes_come_back_as_they_went(shared_memory_bytes, code):
    async with playing(made(code, shared_memory_bytes=shared_memory_bytes)) as played:
        for size in LARGE, 10, LARGE // 8, ARRAY:
            items = arrays(size)
            for _ in range(2):
                echo = await played.run("echo", items)
                for sent, got in zip(items, echo, strict=True):
                    assert got.dtype == sent.dtype
                    np.testing.assert_array_equal(got, sent)
            assert await played.run("sums", items[:1]) == [items[0].sum()]
        for size in 10, 70_000, 1_000_000, 5_000_000:
            body = random.Random(size).randbytes(size)
            items = [body, {"parts": [b"a", body[1:], "text" * (size // 4)]}, bytearray(body)]
            for _ in range(2):
                echo = await played.run("echo", items)
                assert echo == items
                assert [type(one) for one in echo] == [type(one) for one in items]
            steps = await played.steps("echoes", [body])
            assert steps == [[body], [body]]
        if shared_memory_bytes:
            assert await played.run("lengths", [b""]) == [0]
            assert used(played) == 0


@pytest.mark.one_loop
async def test_bytes_leave_the_shared_memory_and_arrays_beside_them_stay_in_it():
    async with playing(made(shared_memory_bytes=ROOM)) as played:
        await played.run("keep", [bytes(500_000)])
        await played.run("lengths", [b""])
        assert used(played) == 0
        await played.run("keep", [(bytes(500_000), np.ones(ARRAY))])
        await played.run("lengths", [b""])
        assert used(played) > 500_000 + 8 * ARRAY  # one block, as long as any of it is in use
        await played.run("forget", [0])
        await played.run("lengths", [b""])
        assert used(played) == 0


@pytest.mark.one_loop
async def test_code_may_be_made_of_large_bytes():
    played_with = bytes(range(256)) * 1000
    async with playing(made(Made, played_with)) as played:
        assert await played.run("__call__", [3]) == [played_with]
        await played.replica.reconfigure({"large": played_with * 2})
        assert await played.run("__call__", [3]) == [played_with * 2]


@pytest.mark.one_loop
async def test_an_item_that_code_keeps_does_not_change_and_its_memory_comes_back_later():
    async with playing(made(shared_memory_bytes=ROOM)) as played:
        await played.run("keep", [np.full(LARGE // 4, 1.0)])
        await played.run("keep", [np.full(LARGE // 4, 2.0)])
        assert used(played) == 2 * 8 * (LARGE // 4)
        for _ in range(8):  # these have what is left, and then none
            await played.run("keep", [np.full(LARGE // 4, 3.0)])
        kept = await played.run("kept", [0])
        assert kept == [n * (LARGE // 4) for n in (1.0, 2.0, *8 * [3.0])]
        await played.run("forget", [0])
        await played.run("sums", [np.ones(LARGE)])
        assert used(played) == 0


@pytest.mark.one_loop
async def test_memory_comes_back_from_a_batch_that_ends_or_fails():
    async with playing(made(shared_memory_bytes=ROOM)) as played:
        for _ in range(5):
            await played.run("echo", [np.ones(LARGE)])
            assert used(played) == 0
            with pytest.raises(TypeError):
                await played.run("__call__", [{"a": np.ones(LARGE)}, None])
            with pytest.raises(TypeError):
                await played.run("unsendable", [np.ones(LARGE)])
        await played.run("sums", [np.ones(LARGE)])
        assert used(played) == 0


@pytest.mark.parametrize("code", [Plain, Async])
async def test_memory_comes_back_from_calls_that_are_cancelled(code, folder):
    async with playing(made(code, folder.path, shared_memory_bytes=ROOM)) as played:
        for nth in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(played.run, "hold", [f"first {nth}"])
                await noted(folder, f"holds first {nth}")
                if code is Plain:
                    with anyio.move_on_after(0.02):
                        await played.run("sums", [np.ones(LARGE)])
                folder.release(f"first {nth}")
        await played.run("sums", [np.ones(LARGE)])
        gc.collect()
        assert used(played) == 0


async def test_memory_comes_back_from_a_call_that_was_cancelled_before_it_was_sent():
    async with playing(made(shared_memory_bytes=ROOM)) as played:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await played.run("sums", [np.ones(LARGE)])
        assert scope.cancelled_caught
        assert used(played) == 0
        assert await played.run("sums", [np.ones(LARGE)]) == [LARGE]


@pytest.mark.one_loop
async def test_equal_arrays_of_a_batch_are_one_array_without_a_copy():
    items = [np.full((3, 50, 50), float(nth)) for nth in range(8)]
    async with playing(made(shared_memory_bytes=ROOM)) as played:
        for _ in range(2):
            shape, is_shared, total = await played.run("one_array", items)
            assert shape == (8, 3, 50, 50)
            assert is_shared
            assert total == sum(item.sum() for item in items)
        shape, is_shared, _ = await played.run("one_array", items[:1])
        assert (shape, is_shared) == ((1, 3, 50, 50), True)
        [total_of_replaced] = await played.run("replaced", items)
        assert total_of_replaced == total + 3 * 50 * 50
        different = [items[0], items[1].astype("f4"), items[2]]
        assert (await played.run("one_array", different))[0] == (3, 3, 50, 50)


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
