"""What Ray Serve's tests of its batching decorator assert (group RU), on functions and on methods.

M is `max_batch_size`, W is `batch_wait_timeout_s`, C is `max_concurrent_batches`.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, PENDING, launch, outcomes, outcomes_in_order, read_all
from batching.scenes import settle

KINDS = pytest.mark.parametrize("kind", ["function", "method"])
# How the two arguments of a call are passed.
MODES: dict[str, Callable[[Any, str, str], Any]] = {
    "positional": lambda call, a, b: call(a, b),
    "keyword": lambda call, a, b: call(left=a, right=b),
    "mixed": lambda call, a, b: call(a, right=b),
    "out_of_order": lambda call, a, b: call(right=b, left=a),
}


@asynccontextmanager
async def serving(kind: str, handler: Any, **options: Any) -> AsyncIterator[Any]:
    """Opens a handler, which is written as a method, as a function or as a method."""
    decorated: Any
    if kind == "function":
        decorated = shoal.batch(**options)(handler.__get__(object()))
    else:
        decorated = type("Owner", (), {"call": shoal.batch(**options)(handler)})().call
    async with shoal.open_batchers(decorated):
        yield decorated


async def echo(self: object, items: list[Any]) -> list[Any]:
    if "raise" in items:
        raise ZeroDivisionError
    return items


@KINDS
@pytest.mark.parametrize("options", [None, {}, {"max_batch_size": 2}])
async def test_ru1_the_decorator_is_accepted_bare_and_with_options(kind, options):
    if options is not None:
        async with serving(kind, echo, **options) as call:
            assert await call("hi") == "hi"
        return
    decorated = shoal.batch(echo.__get__(object())) if kind == "function" else None
    bare = decorated or type("Owner", (), {"call": shoal.batch(echo)})().call
    async with shoal.open_batchers(bare):
        assert await bare("hi") == "hi"


@pytest.mark.parametrize("given", [3, "handler", object(), [echo]])
async def test_ru2_what_can_not_be_called_is_refused_with_the_right_line(given):
    with pytest.raises(TypeError) as caught:
        shoal.batch(given)
    assert repr(given) in str(caught.value)
    assert "@shoal.batch\n" in str(caught.value)
    with pytest.raises(TypeError):
        shoal.batch(max_batch_size=3)(given)


async def test_ru2_plain_functions_are_accepted_though_ray_refuses_them():
    assert shoal.Batcher(lambda items: items).threaded


async def test_ru3_the_size_is_checked():
    with pytest.raises(ValueError, match="0"):
        shoal.batch(max_batch_size=0)(echo)
    with pytest.raises(TypeError, match=r"1\.1"):
        shoal.batch(max_batch_size=1.1)(echo)  # type: ignore[call-overload]
    accepted = shoal.Batcher(lambda items: items, max_batch_size=1.0)  # type: ignore[call-overload]
    assert accepted.options.max_batch_size == 1
    assert type(accepted.options.max_batch_size) is int


async def test_ru4_the_wait_is_checked():
    with pytest.raises(ValueError, match=r"-0\.1"):
        shoal.batch(batch_wait_timeout_s=-0.1)(echo)
    with pytest.raises(TypeError, match="'a'"):
        shoal.batch(batch_wait_timeout_s="a")(echo)  # type: ignore[call-overload]
    shoal.batch(batch_wait_timeout_s=0)(echo)
    shoal.batch(batch_wait_timeout_s=0.0)(echo)


@pytest.mark.parametrize("number", [0, 1.5])
async def test_ru5_the_number_of_slots_is_checked(number):
    with pytest.raises((TypeError, ValueError), match=str(number)):
        shoal.batch(max_concurrent_batches=number)(echo)


@KINDS
async def test_ru14_cancelling_after_an_error_leaves_the_next_batch_alone(kind):
    async def handler(self: object, items: list[Any]) -> list[Any]:
        if "raise" in items:
            raise ValueError
        return items

    async with serving(kind, handler, max_batch_size=2, batch_wait_timeout_s=1000) as call:
        async with anyio.create_task_group() as tasks:
            callers = await launch(tasks, call("raise"), call("raise"))
            for caller in callers:
                caller.leave()
        assert [type(caller.outcome) for caller in callers] == [ValueError] * 2
        assert await outcomes(call(1), call(2)) == [1, 2]


@KINDS
async def test_ru15_the_setters_change_the_next_batch(kind):
    async with serving(kind, echo, max_batch_size=2, batch_wait_timeout_s=1000) as call:
        assert await outcomes(call(1), call(2)) == [1, 2]
        call.set_max_batch_size(3)
        call.set_batch_wait_timeout_s(15_000)
        options = call.batcher.options
        assert (options.max_batch_size, options.batch_wait_timeout_s) == (3, 15_000)
        async with anyio.create_task_group() as tasks:
            callers = await launch(tasks, call(1), call(2))
            assert [caller.outcome for caller in callers] == [PENDING] * 2
            assert await call(3) == 3
        assert anyio.current_time() == 0


def total(items: list[int]) -> int:
    """A size function in Ray's form: of the list of items."""
    return sum(items)


@pytest.mark.parametrize("size_function", [shoal.of_list(total), total])
async def test_ru22_items_that_do_not_fit_together_make_two_batches(size_function):
    batches: list[list[int]] = []

    async def noted(self: object, items: list[int]) -> list[int]:
        batches.append(items)
        return items

    options = {"max_batch_size": 10, "batch_wait_timeout_s": 0.05}
    async with serving("function", noted, batch_size_fn=size_function, **options) as call:
        assert await outcomes(call(6), call(6)) == [6, 6]
        assert anyio.current_time() <= 1
    assert batches == [[6], [6]]


async def test_ru23_an_item_larger_than_a_batch_fails_alone_and_nothing_hangs():
    options = {"max_batch_size": 10, "batch_wait_timeout_s": 0.05}
    async with serving("function", echo, batch_size_fn=shoal.of_list(total), **options) as call:
        async with anyio.create_task_group() as tasks:
            (first,) = await launch(tasks, call(6))
            with pytest.raises(shoal.errors.ItemTooLarge, match=r"costs 12, .* max_batch_size=10"):
                await call(12)
        assert first.outcome == 6
        assert await call(10) == 10


async def test_ru25_a_line_too_small_for_full_batches_is_warned_of_once(caplog):
    options = {"max_batch_size": 4, "max_concurrent_batches": 2, "max_queued_requests": 7}
    async with serving("function", echo, **options) as call:
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        caplog.clear()
        call.set_max_batch_size(5)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        caplog.clear()
        call.set_max_batch_size(3)
        assert caplog.records == []
    async with serving("function", echo, **{**options, "max_queued_requests": 8}):
        assert caplog.records == []


@KINDS
@pytest.mark.parametrize("given", [3, "len", (len,)])
async def test_ru26_a_size_function_must_be_one(kind, given):
    with pytest.raises(TypeError, match="batch_size_fn must be a callable or None, not"):
        async with serving(kind, echo, batch_size_fn=given):
            pass


@KINDS
async def test_ru6_a_batch_of_one_does_not_wait(kind):
    async with serving(kind, echo, max_batch_size=1, batch_wait_timeout_s=1000) as call:
        started = anyio.current_time()
        assert await call("hi") == "hi"
        with pytest.raises(ZeroDivisionError):
            await call("raise")
        assert anyio.current_time() == started


@KINDS
@pytest.mark.parametrize("mode", MODES)
async def test_ru12_two_parameters_come_in_any_mode(kind, mode):
    async def pairs(self: object, left: list[str], right: list[str]) -> list[tuple[str, str]]:
        return list(zip(left, right, strict=True))

    async with serving(kind, pairs, max_batch_size=2, batch_wait_timeout_s=1000) as call:
        make = partial(MODES[mode], call)
        got = await outcomes_in_order(make("hi1", "hi2"), make("hi3", "hi4"))
    assert got == [("hi1", "hi2"), ("hi3", "hi4")]


@KINDS
async def test_ru13_cancelled_calls_cancel_the_handler_once_the_last_has_left(kind):
    gates, passed = [anyio.Event()], [0]

    async def handler(self: object, items: list[Any]) -> list[Any]:
        await gates[-1].wait()
        passed[0] += 1
        return items

    async with serving(kind, handler, max_batch_size=2, batch_wait_timeout_s=1000) as call:  # noqa: SIM117
        async with anyio.create_task_group() as tasks:
            first, second = await launch(tasks, call(1), call(2))
            await first.gone()
            assert (first.outcome, second.outcome) == (LEFT, PENDING)
            await second.gone()
            assert second.outcome == LEFT
            assert passed == [0]
            gates[-1].set()
            assert await outcomes(call(3), call(4)) == [3, 4]
    assert passed == [1]


@KINDS
async def test_ru13_cancelled_streams_close_the_generator_once_the_last_has_left(kind):
    gate, passed = anyio.Event(), [0]

    async def handler(self: object, items: list[Any]) -> Any:
        await gate.wait()
        passed[0] += 1
        yield items

    async with serving(kind, handler, max_batch_size=2, batch_wait_timeout_s=1000) as call:
        async with anyio.create_task_group() as tasks:
            first, second = await read_all(tasks, call(1), call(2))
            await settle()
            await first.gone()
            assert (first.outcome, second.outcome) == (LEFT, PENDING)
            await second.gone()
            assert passed == [0]
            gate.set()
            again = await read_all(tasks, call(3), call(4))
        assert [reader.items for reader in again] == [[3], [4]]
    assert passed == [1]


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
