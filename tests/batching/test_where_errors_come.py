"""The errors of a call come where it is awaited, and those of a stream where it is entered.

So whoever gathers many calls, or starts a task for each, meets all of their errors in one place.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import pytest

import shoal


class Broken(Exception):
    pass


def broken(*_: Any) -> Any:
    raise Broken


async def echo(items: list[Any]) -> list[Any]:
    return items


async def steps(items: list[Any]) -> AsyncIterator[list[Any]]:
    yield items


async def pairs(left: list[Any], right: list[Any]) -> list[Any]:
    return left


REFUSALS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "too large": ({"batch_size_fn": lambda _: 99}, shoal.errors.ItemTooLarge),
    "cost": ({"batch_size_fn": broken}, Broken),
    "no number": ({"batch_size_fn": str}, TypeError),
    "key": ({"bucket_by": broken}, Broken),
    "no key": ({"bucket_by": lambda _: []}, TypeError),
    "split": ({"batch_size_fn": lambda _: 99, "split": broken, "join": list}, Broken),
}


async def met(call: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("how", ["decorated", "batcher", "options", "map", "map with options"])
@pytest.mark.parametrize("why", REFUSALS)
async def test_what_a_call_is_refused_for_comes_where_it_is_awaited(why: str, how: str) -> None:
    options, kind = REFUSALS[why]
    decorated = shoal.batch(**options)(echo)
    batcher = shoal.Batcher(echo, **options)
    ways: dict[str, Callable[[Any], Any]] = {
        "decorated": lambda _: decorated(1),
        "batcher": lambda call: call(1),
        "options": lambda call: call.options(metadata={"a": 1})(1),
        "map": lambda call: call.map([1]),
        "map with options": lambda call: call.options(metadata={"a": 1}).map([1]),
    }
    async with shoal.open_batchers(decorated), batcher as call:
        made = ways[how](call)
        assert isinstance(await met(made), kind)
    assert batcher.statistics().finished == 0


@pytest.mark.parametrize("why", [why for why in REFUSALS if why != "split"])
async def test_what_a_stream_is_refused_for_comes_where_it_is_entered(why: str) -> None:
    options, kind = REFUSALS[why]
    decorated = shoal.batch(**options)(steps)
    batcher = shoal.Batcher(steps, **options)
    async with shoal.open_batchers(decorated), batcher as call:
        for made in (decorated(1), call(1), call.options(metadata={"a": 1})(1)):
            assert isinstance(await met(made.__aenter__()), kind)
        for made in (decorated(1), call(1)):
            assert isinstance(await met(anext(made)), kind)


async def test_what_does_not_fit_comes_where_it_is_awaited() -> None:
    async with shoal.Batcher(pairs) as call, shoal.Batcher(steps) as stream:
        assert isinstance(await met(call.map([1, 2], [3])), ValueError)
        assert isinstance(await met(call.map([1])), TypeError)
        assert isinstance(await met(call.options(priority=3)(1, 2)), ValueError)
        assert isinstance(await met(stream.options(priority=3)(1).__aenter__()), ValueError)


class Model:
    @shoal.batch
    async def one(self, items: list[Any]) -> list[Any]:
        return items

    @shoal.batch
    async def many(self, items: list[Any]) -> AsyncIterator[list[Any]]:
        yield items


UNOPENED: Sequence[tuple[Any, Any]] = [
    (shoal.batch(echo), shoal.batch(steps)),
    (shoal.Batcher(echo).call, shoal.Batcher(steps).call),
    (Model().one, Model().many),
]


@pytest.mark.parametrize(("call", "stream"), UNOPENED)
async def test_not_open_comes_where_it_is_awaited(call: Any, stream: Any) -> None:
    made = [call(1), call.options(timeout_s=1)(1), call.map([1]), Model.one(Model(), 1)]
    assert {type(await met(one)) for one in made} == {shoal.errors.NotOpen}
    for one in (stream(1), stream.options(timeout_s=1)(1)):
        assert type(await met(one.__aenter__())) is shoal.errors.NotOpen
    assert type(await met(anext(stream(1)))) is shoal.errors.NotOpen


async def test_a_closed_batcher_is_told_of_where_it_is_awaited() -> None:
    unopened, closed = shoal.Batcher(echo), shoal.Batcher(echo)
    await unopened.aclose()
    async with closed:
        pass
    for batcher in (unopened, closed):
        assert type(await met(batcher.call(1))) is shoal.errors.BatcherClosed
        assert type(await met(batcher.call.map([1]))) is shoal.errors.BatcherClosed


async def test_what_is_open_when_it_is_awaited_is_called() -> None:
    decorated, streamed = shoal.batch(echo), shoal.batch(steps)
    early, stream, many = decorated(1), streamed(2), decorated.map([3, 4])
    async with shoal.open_batchers(decorated, streamed):
        assert await early == 1
        assert await many == [3, 4]
        async with stream:
            assert [item async for item in stream] == [2]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_gathered_calls_meet_all_errors_alike() -> None:
    large = shoal.batch(batch_size_fn=lambda item: item)(echo)
    closed = shoal.batch(echo)
    async with shoal.open_batchers(large):
        answers = await asyncio.gather(large(1), large(99), closed(1), return_exceptions=True)
    expected = [int, shoal.errors.ItemTooLarge, shoal.errors.NotOpen]
    assert [type(answer) for answer in answers] == expected


async def test_a_call_that_is_refused_is_a_checkpoint() -> None:
    async with shoal.Batcher(echo, batch_size_fn=broken) as call:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call(1)
        assert scope.cancelled_caught


async def test_what_ends_the_program_is_not_lost_where_the_call_is_cancelled() -> None:
    def interrupted(_: Any) -> float:
        raise KeyboardInterrupt

    async with shoal.Batcher(echo, batch_size_fn=interrupted) as call:
        with anyio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(KeyboardInterrupt):
                await call(1)
        assert not scope.cancelled_caught
