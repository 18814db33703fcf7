"""A handler that does not leave a cancel scope of its own harms no batch but its own."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import outcome, outcomes

scopes: list[anyio.CancelScope] = []


def entered(scope: anyio.CancelScope) -> anyio.CancelScope:
    scope.__enter__()
    scopes.append(scope)
    return scope


def with_a_time() -> None:
    entered(anyio.move_on_after(0.5))


def that_another_cancels() -> None:
    entered(anyio.CancelScope())


def that_is_cancelled() -> None:
    entered(anyio.CancelScope()).cancel()


def two_of_them() -> None:
    with_a_time()
    that_another_cancels()


def with_a_shield() -> None:
    entered(anyio.move_on_after(0.5, shield=True))


LEFT_OPEN = pytest.mark.parametrize(
    "leave_open", [with_a_time, that_another_cancels, that_is_cancelled, two_of_them, with_a_shield]
)


@pytest.fixture(autouse=True)
def no_scopes() -> None:
    scopes.clear()


async def cancel_scopes() -> None:
    await anyio.sleep(0.7)
    for scope in scopes:
        scope.cancel()


async def harms_only_its_batch(
    batcher: shoal.Batcher[Any], expected: type[object], calls: int = 1
) -> None:
    async with batcher as call:
        for _ in range(2):
            scopes.clear()
            for got in await outcomes(*[call("bad") for _ in range(calls)]):
                assert isinstance(got, expected)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_scopes)
                for _ in range(3):
                    assert await outcome(call("slow")) == "slow"


def handler_of(leave_open: Callable[[], None], *, fails: bool = False, wait_s: float = 0) -> Any:
    async def handler(items: list[str]) -> list[str]:
        if items[0] == "slow":
            await anyio.sleep(1)
        elif items[0] == "bad":
            leave_open()
            if wait_s:
                await anyio.sleep(wait_s)
            if fails:
                raise ValueError(items[0])
        return items

    return handler


@LEFT_OPEN
async def test_its_batch_is_answered_and_the_next_ones_are_not_harmed(leave_open, caplog):
    await harms_only_its_batch(shoal.Batcher(handler_of(leave_open)), str)
    assert [record.message for record in caplog.records] == [
        "a handler has left a cancel scope open"
    ] * 2


@LEFT_OPEN
async def test_so_it_is_if_it_fails(leave_open: Any) -> None:
    await harms_only_its_batch(shoal.Batcher(handler_of(leave_open, fails=True)), ValueError)


@LEFT_OPEN
async def test_so_it_is_in_a_part_of_a_batch(leave_open: Any) -> None:
    async def handler(items: list[str]) -> list[str]:
        if len(items) > 1:
            raise ValueError(items)
        return await handler_of(leave_open)(items)

    batcher = shoal.Batcher(handler, max_batch_size=2, isolate_errors=True)
    await harms_only_its_batch(batcher, object, calls=2)


@LEFT_OPEN
async def test_so_it_is_for_open_batches(leave_open: Any) -> None:
    async def handler(batch: shoal.OpenBatch[str, str]) -> None:
        async for request in batch:
            [result] = await handler_of(leave_open)([request.item])
            request.finish(result)

    await harms_only_its_batch(shoal.Batcher(handler, fill="open"), str)


@LEFT_OPEN
async def test_a_slot_that_was_cancelled_by_it_runs_the_next_batches_and_has_room_again(leave_open):
    handler = handler_of(leave_open, wait_s=2)
    async with shoal.Batcher(handler, max_batch_size=2, max_queued_requests=1) as call:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_scopes)
            assert isinstance(await outcome(call("bad")), shoal.errors.ShoalError)
        assert await outcomes(call("a"), call("b"), call("c")) == ["a", "b", "c"]
        assert await outcome(call("slow")) == "slow"
