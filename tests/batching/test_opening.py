"""Decorated functions: opening them, what they keep of the handler, calls while none is open."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import outcomes

pytestmark = pytest.mark.anyio


@shoal.batch
async def increment(numbers: list[int]) -> list[int]:
    """Adds one."""
    return [number + 1 for number in numbers]


@shoal.batch(max_batch_size=2)
async def sizes(numbers: list[int]) -> list[int]:
    return [len(numbers)] * len(numbers)


async def test_the_decorator_works_bare_and_with_options() -> None:
    async with shoal.open_batchers(increment, sizes):
        assert await outcomes(increment(1), increment(2)) == [2, 3]
        assert await outcomes(*map(sizes, range(4))) == [2, 2, 2, 2]


async def test_a_call_while_nothing_is_open_shows_the_line_that_opens_it() -> None:
    with pytest.raises(shoal.errors.NotOpen, match=r"async with shoal.open_batchers\(increment\):"):
        await increment(1)
    async with shoal.open_batchers(increment):
        await increment(1)
    with pytest.raises(shoal.errors.NotOpen):
        await increment(1)
    with pytest.raises(shoal.errors.NotOpen):
        increment.batcher  # noqa: B018


async def test_a_function_is_open_once_in_an_event_loop() -> None:
    async with shoal.open_batchers(increment):
        with pytest.raises(RuntimeError, match="open in this event loop already"):
            async with shoal.open_batchers(sizes, increment):
                pass
        assert await increment(1) == 2
        with pytest.raises(shoal.errors.NotOpen):
            await sizes(1)  # if one can't be opened, none is


async def test_name_doc_and_signature_are_kept_for_one_item() -> None:
    assert increment.__name__ == "increment"
    assert increment.__doc__ == "Adds one."
    signature = inspect.signature(increment)
    assert list(signature.parameters) == ["numbers"]
    assert signature.parameters["numbers"].annotation is int
    assert signature.return_annotation is int


async def test_signature_shows_on_the_decorated_function() -> None:
    def one(left: int, right: int = 5) -> int: ...  # type: ignore[empty-body]

    @shoal.batch(signature=one)
    async def handler(left: list[Any], right: list[Any]) -> list[Any]:
        return left

    assert inspect.signature(handler).parameters["right"].default == 5


async def test_a_signature_with_other_parameters_is_refused_where_it_is_written() -> None:
    def other(wrong: int) -> int: ...  # type: ignore[empty-body]

    with pytest.raises(TypeError, match="must have the handler's parameters"):

        @shoal.batch(signature=other)
        async def handler(left: list[Any], right: list[Any]) -> list[Any]:
            return left


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_batch_size": 0}, ValueError),
        ({"handler_timeout_s": "1"}, TypeError),
        ({"batch_size": 4}, TypeError),
    ],
)
async def test_a_wrong_option_is_refused_where_it_is_written(
    options: dict[str, Any], error: type[Exception]
) -> None:
    name = next(iter(options))
    with pytest.raises(error, match=name):
        shoal.batch(**options)(lambda items: items)
    with pytest.raises(error, match=name):
        shoal.Batcher(lambda items: items, **options)


async def test_calls_between_batched_functions_work_as_they_close_in_reverse() -> None:
    @shoal.batch
    async def outer(numbers: list[int]) -> list[int]:
        return await increment.map(numbers)

    async with anyio.create_task_group() as tasks, shoal.open_batchers(increment, outer):
        results: list[int] = []

        async def caller() -> None:
            results.append(await outer(1))

        tasks.start_soon(caller)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    assert results == [2]
