"""A batcher that is made in one event loop may be opened in another one, of another kind too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

import shoal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


def twice(numbers: list[int]) -> Iterator[list[int]]:
    yield numbers
    yield numbers


async def double_async(numbers: list[int]) -> list[int]:
    return double(numbers)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("handler", [double, double_async])
async def test_a_call(handler: Any, backend: str) -> None:
    batcher: Any = shoal.Batcher(handler)

    def in_a_thread() -> Any:
        with shoal.blocking(batcher, backend=backend) as call:
            return call.map([1, 2])

    assert await anyio.to_thread.run_sync(in_a_thread) == [2, 4]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_a_stream(backend: str) -> None:
    batcher = shoal.Batcher(twice)

    def in_a_thread() -> list[int]:
        with shoal.blocking(batcher, backend=backend) as call, call(7) as stream:
            return list(stream)

    assert await anyio.to_thread.run_sync(in_a_thread) == [7, 7]
