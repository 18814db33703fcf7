"""Calling: what a call takes, what it gives, and which functions can be handlers."""

import inspect
from collections.abc import Iterator
from functools import partial
from threading import get_ident
from typing import Any

import anyio
import pytest
import trio

import shoal
from batching.callers import line_up, outcomes
from batching.scenes import Recorder, opening, settle
from handlers import double
from shoal.batching.handlers.binding import Binding


def double_in_thread(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def times(items: list[int], *, factor: int) -> list[int]:
    return [factor * item for item in items]


class Doubler:
    async def __call__(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]

    def method(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]


@pytest.mark.real_time
@pytest.mark.parametrize(
    "handler",
    [
        double,
        double_in_thread,
        Doubler(),
        Doubler().__call__,
        Doubler().method,
        partial(times, factor=2),
        partial(partial(times), factor=2),
        partial(double_in_thread),
        partial(Doubler()),
    ],
)
async def test_every_kind_of_function_can_be_a_handler(handler: Any) -> None:
    async with shoal.Batcher(handler) as call:
        assert await call(21) == 42
    decorated = shoal.batch(handler)
    async with shoal.open_batchers(decorated):
        assert await decorated(21) == 42


@pytest.mark.real_time
async def test_a_plain_function_runs_in_a_thread_and_a_coroutine_function_in_the_loop() -> None:
    def plain(items: list[None]) -> list[int]:
        return [get_ident() for _ in items]

    async def coroutine(items: list[None]) -> list[int]:
        return [get_ident() for _ in items]

    async with shoal.Batcher(plain) as in_thread, shoal.Batcher(coroutine) as in_loop:
        assert await in_thread(None) != get_ident()
        assert await in_loop(None) == get_ident()


@pytest.mark.parametrize("handler", [3, None, "name", object(), Doubler, int])
async def test_what_can_not_be_called_and_a_class_are_refused_as_handlers(handler):
    no_function = r"must be a function of a list.*\n.*@shoal.batch"
    with pytest.raises(TypeError, match="is a class" if isinstance(handler, type) else no_function):
        shoal.Batcher(handler)


class Batched:
    @shoal.batch
    async def __call__(self, items: list[int]) -> list[int]:
        return items

    @shoal.batch
    async def method(self, items: list[int]) -> list[int]:
        return items


@shoal.batch
def streamed(items: list[int]) -> Iterator[list[int]]:
    yield items


BATCHED: list[Any] = [
    *(Batched(), Batched().method, Batched.method, streamed),
    *(partial(streamed), streamed.options(priority=1), shoal.Batcher(double).call),
]


@pytest.mark.parametrize("handler", BATCHED)
def test_what_is_batched_already_is_refused_as_a_handler(handler: Any) -> None:
    for take in (shoal.Batcher, shoal.batch, shoal.batch(max_batch_size=2)):
        with pytest.raises(TypeError, match=r"is batched already; open it with shoal.open_batch"):
            take(handler)


async def test_a_handler_without_parameters_batches_calls_without_arguments() -> None:
    async def draw() -> list[int]:
        return list(range(shoal.current_batch().size))

    class Dice:
        @shoal.batch
        async def roll(self) -> list[int]:
            return [6] * shoal.current_batch().size

    async with shoal.Batcher(draw, max_batch_size=3) as call:
        assert sorted(await outcomes(call(), call(), call())) == [0, 1, 2]
        with pytest.raises(TypeError):
            await call(1)
    dice: Any = Dice()
    async with shoal.open_batchers(dice.roll):
        assert await outcomes(dice.roll(), dice.roll()) == [6, 6]


async def test_a_call_in_a_cancelled_scope_never_reaches_the_handler(recorder: Recorder) -> None:
    async with shoal.Batcher(recorder) as call:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call(1)
        assert scope.cancelled_caught
        assert await call(2) == 2
    assert recorder.batches == [[2]]


async def test_a_call_lets_other_tasks_run() -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async with shoal.Batcher(double) as call, anyio.create_task_group() as tasks:
        await settle()
        tasks.start_soon(other)
        await call(1)
        assert ran == ["other"]


async def pairs(
    left: list[int],
    right: list[int] = 7,
    *,
    mark: list[str] = "!",  # type: ignore[assignment]
) -> list[tuple[int, int, str]]:
    assert isinstance(left, list)
    assert isinstance(right, list)
    assert isinstance(mark, list)
    return list(zip(left, right, mark, strict=True))


async def test_ru12_tx9_each_parameter_is_batched_into_a_list_of_its_own() -> None:
    async with shoal.Batcher(pairs) as call:
        got = await outcomes(
            call(1, 2), call(3, right=4), call(right=6, left=5), call(8, mark="?"), call(left=9)
        )
    assert got == [(1, 2, "!"), (3, 4, "!"), (5, 6, "!"), (8, 7, "?"), (9, 7, "!")]


async def test_a_left_out_single_parameter_gets_its_default() -> None:
    async def handler(items: Any = "default") -> list[Any]:
        return list(items)

    async with shoal.Batcher(handler) as call:
        assert await outcomes(call(), call("given")) == ["default", "given"]


async def test_tx5_a_bad_call_is_a_type_error_of_its_caller_alone_and_enters_no_batch(recorder):
    async def two(left: list[int], right: list[int]) -> list[int]:
        return await recorder(left)

    async with opening(two, batch_wait_timeout_s=1) as (_, call, tasks):
        (good,) = await line_up(tasks, call(1, 2))
        for bad in (
            lambda: call(1),
            lambda: call(),
            lambda: call(1, 2, 3),
            lambda: call(1, right=2, wrong=3),
            lambda: call(1, left=1),
        ):
            with pytest.raises(TypeError):
                await bad()
    assert good.outcome == 1
    assert recorder.batches == [[1]]


async def test_what_a_partial_has_filled_in_is_not_batched() -> None:
    async with shoal.Batcher(partial(times, factor=3)) as call:
        assert await outcomes(call(1), call(2)) == [3, 6]
        with pytest.raises(TypeError):
            await call(1, factor=4)


async def test_options_of_a_call_do_not_mix_with_parameters_of_the_handler() -> None:
    async def handler(item: list[str], timeout_s: list[str], metadata: list[str]) -> list[Any]:
        requests = shoal.current_batch().requests
        return [
            (i, d, m, r.metadata)
            for i, d, m, r in zip(item, timeout_s, metadata, requests, strict=True)
        ]

    async with shoal.Batcher(handler) as call:
        got = await call.options(metadata={"user": 1}, timeout_s=5)(
            "a", timeout_s="b", metadata="c"
        )
    assert got == ("a", "b", "c", {"user": 1})


@pytest.mark.parametrize(
    ("timeout_s", "error"),
    [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)],
)
async def test_a_deadline_that_is_no_time_is_refused(timeout_s, error):
    with pytest.raises(error, match="timeout_s"):
        shoal.Batcher(double).call.options(timeout_s=timeout_s)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_trio_nursery_can_run_the_batcher() -> None:
    batcher = shoal.Batcher(double)
    async with trio.open_nursery() as nursery:
        call = await nursery.start(batcher.run)
        assert await call(2) == 4
        nursery.cancel_scope.cancel()
    assert batcher.statistics().state == "closed"


async def test_a_batcher_is_opened_once() -> None:
    batcher = shoal.Batcher(double)
    async with batcher:
        with pytest.raises(RuntimeError, match="opened once"):
            await batcher.run()
    with pytest.raises(RuntimeError, match="opened once"):
        await batcher.run()


async def test_the_face_of_a_batcher_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(shoal.errors.NotOpen, match="async with batcher as call"):
        await shoal.Batcher(double).call(1)


def test_a_batcher_can_be_made_before_there_is_an_event_loop() -> None:
    batcher = shoal.Batcher(double)

    async def main() -> int:
        async with batcher as call:
            return await call(21)

    assert anyio.run(main, backend="trio") == 42


# Calls that are bound by a signature alone, where the function is elsewhere or takes one item


def of_one(item, /): ...
def of_one_by_name(*, item): ...
def with_default(item=7): ...
def of_two(text, plus=1): ...
def mixed(first, /, second, *, third=3): ...
def of_none(): ...


def called(binding, *args, **kwargs):
    """What a function of one item gets for a call."""
    return binding.columns([binding.item(args, kwargs)])


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "passed"),
    [
        (of_one, (5,), {}, ([5], {})),
        (of_one_by_name, (), {"item": 5}, ([], {"item": 5})),
        (with_default, (), {}, ([7], {})),
        (with_default, (), {"item": 5}, ([5], {})),
        (of_two, ("a",), {}, (["a", 1], {})),
        (of_two, ("a",), {"plus": 2}, (["a", 2], {})),
        (of_two, (), {"plus": 2, "text": "a"}, (["a", 2], {})),
        (mixed, (1, 2), {}, ([1, 2], {"third": 3})),
        (mixed, (1,), {"second": 2, "third": 4}, ([1, 2], {"third": 4})),
        (of_none, (), {}, ([], {})),
    ],
)
def test_a_function_of_one_item_gets_its_arguments_as_they_were_given(
    function, args, kwargs, passed
):
    binding = Binding.of_items(inspect.signature(function), "arguments")
    assert called(binding, *args, **kwargs) == passed
    positional, keywords = passed
    inspect.signature(function).bind(*positional, **keywords)


@pytest.mark.parametrize("gives", ["items", "arguments"])
@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (of_one, (), {}),
        (of_one, (1, 2), {}),
        (of_one, (), {"item": 1}),
        (of_one_by_name, (1,), {}),
        (of_two, ("a",), {"text": "b"}),
        (of_two, ("a",), {"minus": 1}),
        (of_none, (1,), {}),
    ],
)
def test_a_call_that_does_not_fit_is_a_type_error(gives, function, args, kwargs):
    with pytest.raises(TypeError):
        Binding.of_items(inspect.signature(function), gives).item(args, kwargs)


@pytest.mark.parametrize("function", [lambda *items: ..., lambda item, **more: ...])
def test_an_item_of_any_number_of_arguments_has_no_form(function):
    with pytest.raises(TypeError, match="must be named"):
        Binding.of_items(inspect.signature(function), "items")


def test_a_batch_is_handed_on_as_one_list():
    binding = Binding.of_items(inspect.signature(of_two), "items")
    items = [binding.item(("a",), {}), binding.item(("b", 2), {})]
    assert binding.columns(items) == ([[("a", 1), ("b", 2)]], {})
    of_single = Binding.of_items(inspect.signature(of_one), "items")
    assert of_single.columns([1, 2]) == ([[1, 2]], {})


def test_an_item_that_is_a_tuple_stays_one():
    binding = Binding.of_items(inspect.signature(of_one), "arguments")
    assert called(binding, (1, 2)) == ([(1, 2)], {})
