"""What Ray Serve's tests of its batching decorator assert of generators (group RU)."""

from functools import partial
from typing import Any

import anyio
import pytest
from test_ray_queue import KINDS, MODES, serving

import shoal
from batching.scenes import read_all, settle


@KINDS
@pytest.mark.parametrize("count", [0, 2, 5])
@pytest.mark.parametrize("mode", MODES)
async def test_ru17_each_stream_gets_exactly_its_own_items(kind, count, mode):
    async def handler(self: object, left: list[str], right: list[str]) -> Any:
        for number in range(count):
            yield [(a, b, number) for a, b in zip(left, right, strict=True)]

    async with serving(kind, handler, max_batch_size=2, batch_wait_timeout_s=1000) as call:
        make = partial(MODES[mode], call)
        async with anyio.create_task_group() as tasks:
            readers = await read_all(tasks, make("hi1", "hi2"), make("hi3", "hi4"))
    assert [reader.items for reader in readers] == [
        [("hi1", "hi2", number) for number in range(count)],
        [("hi3", "hi4", number) for number in range(count)],
    ]
    assert [reader.outcome for reader in readers] == ["end", "end"]


@pytest.mark.parametrize(
    ("third_step", "error"),
    [
        pytest.param(None, RuntimeError, id="ru18 an error"),
        pytest.param([2], shoal.errors.WrongBatchSize, id="ru19 a step of a wrong length"),
    ],
)
async def test_ru18_ru19_an_error_comes_after_the_items_and_before_the_end(third_step, error):
    async def handler(self: object, items: list[Any]) -> Any:
        for number in range(2):
            yield [number] * len(items)
        if third_step is None:
            raise RuntimeError("Testing error")
        yield third_step

    options = {"max_batch_size": 2, "batch_wait_timeout_s": 1000}
    async with serving("function", handler, **options) as call, call("a") as a, call("b") as b:
        for stream in (a, b):
            assert [await anext(stream), await anext(stream)] == [0, 1]
            with pytest.raises(error):
                await anext(stream)
            assert await anext(stream, "end") == "end"


async def test_ru21_the_setters_can_be_used_while_a_batch_streams(steps):
    batcher = shoal.Batcher(steps.handler, max_batch_size=2, batch_wait_timeout_s=1000)
    async with batcher as call, anyio.create_task_group() as tasks:
        readers = await read_all(tasks, call("a"), call("b"))
        steps.step(0, 0)
        steps.step(1, 1)
        await settle()
        batcher.set_max_batch_size(3)
        steps.step(2, 2)
        steps.end()
        readers += await read_all(tasks, call("c"), call("d"), call("e"))
        for number in range(3):
            steps.step(number, number, number)
        steps.end()
    assert [reader.items for reader in readers] == [[0, 1, 2]] * 5
    assert steps.batches == [["a", "b"], ["c", "d", "e"]]
