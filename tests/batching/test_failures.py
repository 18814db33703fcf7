"""Failures: each caller catches the handler's own exception type, with an exception of its own."""

import asyncio
import logging
import math
import random
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import anyio
import pytest

import shoal
from batching.callers import launch, outcome, outcomes, read_all
from batching.scenes import Held, Recorder, opening, settle
from handlers import echo


def raising(make: Any) -> Any:
    async def handler(items: list[Any]) -> list[Any]:
        raise make()

    return handler


class Coded(Exception):
    """Takes other arguments than the message that it passes on."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} at {where}")
        self.code = code
        self.where = where


ISOLATED: dict[str, Any] = {"isolate_errors": True, "batch_wait_timeout_s": 1}


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__("slotted")
        self.code = code


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class WithoutArgs(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise SystemExit("not here")


class Uncopyable(Exception):
    def __new__(cls, token: object = None) -> Self:
        if token is not Uncopyable:
            raise TypeError("made by the factory only")
        return super().__new__(cls)

    def __init__(self, token: object) -> None:
        super().__init__("uncopyable")


async def test_each_caller_catches_the_handlers_type_with_an_object_of_its_own() -> None:
    original = ZeroDivisionError("by zero")
    async with shoal.Batcher(raising(lambda: original)) as call:
        errors = await outcomes(*map(call, range(3)))
    assert [type(error) for error in errors] == [ZeroDivisionError] * 3
    assert [error.args for error in errors] == [("by zero",)] * 3
    assert all(error.__cause__ is original for error in errors)
    assert len({id(error) for error in [*errors, original]}) == 4


async def test_tracebacks_do_not_pile_up() -> None:
    original = ValueError("always the same object")

    async def handler(items: list[int]) -> list[int]:
        raise original.with_traceback(None)

    depths = []
    async with shoal.Batcher(handler) as call:
        for _ in range(3):
            error = await outcome(call(1))
            depths.append(len(traceback.extract_tb(error.__traceback__)))
    assert len(set(depths)) == 1


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda: Coded(7, where="here"), {"code": 7, "where": "here", "args": ("7 at here",)}),
        (lambda: Slotted(3), {"code": 3, "args": ("slotted",)}),
        (lambda: Frozen(3), {"code": 3, "args": (3,)}),
        (lambda: FileNotFoundError(2, "gone", "file"), {"errno": 2, "filename": "file"}),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), {"object": b"\xff", "end": 1}),
        (lambda: KeyError("key"), {"args": ("key",)}),
        (lambda: ExceptionGroup("two", [ValueError(1), KeyError(2)]), {"message": "two"}),
    ],
)
async def test_a_copy_has_the_fields_of_the_original(make: Any, fields: dict[str, Any]) -> None:
    original = make()
    async with shoal.Batcher(raising(lambda: original)) as call:
        first, second = await outcomes(call(1), call(2))
    for error in (first, second):
        assert type(error) is type(original)
        assert str(error) == str(original)
        assert {name: getattr(error, name) for name in fields} == fields
    assert first is not second


async def test_a_copy_has_the_notes_of_the_original_in_a_list_of_its_own() -> None:
    original = ValueError("noted")
    original.add_note("from the handler")
    async with shoal.Batcher(raising(lambda: original)) as call:
        first, second = await outcomes(call(1), call(2))
    first.add_note("mine")
    assert second.__notes__ == original.__notes__ == ["from the handler"]


async def test_an_exception_that_can_not_be_copied_is_the_cause_of_one_of_ours() -> None:
    original = Uncopyable(Uncopyable)
    async with shoal.Batcher(raising(lambda: original)) as call:
        errors = await outcomes(call(1), call(2))
    for error in errors:
        assert type(error) is shoal.errors.HandlerFailed
        assert error.__cause__ is original
        assert "Uncopyable" in str(error)


async def test_an_exception_whose_arguments_can_not_be_read_fails_its_batch_alone() -> None:
    async with shoal.Batcher(raising(WithoutArgs)) as call:
        for _ in range(2):
            assert type(await outcome(call(1))) is WithoutArgs


@pytest.mark.real_time
@pytest.mark.parametrize("make", [lambda: ValueError("bad"), StopIteration])
async def test_what_a_plain_function_raises_reaches_its_callers(make: Any) -> None:
    def handler(items: list[int]) -> list[int]:
        raise make()

    async with shoal.Batcher(handler) as call:
        errors = await outcomes(call(1), call(2))
        assert all(isinstance(error, (ValueError, RuntimeError)) for error in errors)
        assert errors[0] is not errors[1]
        assert isinstance(await outcome(call(3)), (ValueError, RuntimeError))


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 64])
@pytest.mark.parametrize("poisons", [1, 2, 3, 8])
async def test_with_isolation_k_poison_items_of_n_fail_alone_in_at_most_2k_log2_n_more_runs(
    size: int, poisons: int
) -> None:
    poison = set(random.Random(size * poisons).sample(range(size), min(poisons, size)))

    def answer(item: int) -> int:
        if item in poison:
            raise ValueError(item)
        return item

    handler = Recorder(answer)
    batcher = shoal.Batcher(handler, **ISOLATED, max_batch_size=size)
    async with batcher as call:
        got = await call.map(range(size), return_exceptions=True)
    for item, result in enumerate(got):
        if item in poison:
            assert (type(result), result.args) == (ValueError, (item,))
        else:
            assert result == item
    assert handler.batches[:2] == [[*range(size)], [*range(size // 2)]]
    assert len(handler.batches) - 1 <= 2 * len(poison) * math.ceil(math.log2(size))
    statistics = batcher.statistics()
    assert (statistics.failed, statistics.finished) == (len(poison), size - len(poison))


async def test_a_batch_that_was_isolated_is_over_when_its_parts_are() -> None:
    handler = Recorder(lambda item: 1 // item)
    batcher = shoal.Batcher(handler, isolate_errors=True, max_queued_requests=0)
    async with batcher as call:
        await outcomes(call(0), call(1), call(2))
        statistics = batcher.statistics()
        assert (statistics.running, statistics.batches_running) == (0, 0)
        assert statistics.run_s.total == 1
        assert await call(1) == 1


async def test_a_caller_that_left_is_not_run_again_when_its_batch_is_isolated() -> None:
    held = Held(lambda item: 1 // item)
    async with opening(held, **ISOLATED, max_batch_size=4) as (_, call, tasks):
        callers = await launch(tasks, *map(call, range(4)))
        await callers[1].gone()
        held.gate.set()
    assert held.batches == [[0, 1, 2, 3], [0], [2, 3]]
    assert callers[2].outcome == callers[3].outcome == 0


async def test_a_failure_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(items: list[int]) -> list[int]:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("in the clean-up")

    async with shoal.Batcher(handler) as call:
        with anyio.move_on_after(1):
            await call(1)
        await settle()
    assert [
        r.exc_info[0] for r in caplog.records if r.levelno == logging.WARNING and r.exc_info
    ] == [ValueError]


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (shoal.errors.NotOpen, RuntimeError),
        (shoal.errors.BatcherClosed, ConnectionError),
        (shoal.errors.Overloaded, RuntimeError),
        (shoal.errors.WrongBatchSize, ValueError),
        (shoal.errors.WrongResultType, TypeError),
        (shoal.errors.HandlerTimeout, TimeoutError),
        (shoal.errors.DeadlineExceeded, TimeoutError),
        (shoal.errors.SlowReader, TimeoutError),
        (shoal.errors.HandlerFailed, RuntimeError),
    ],
)
def test_our_errors_derive_from_ours_and_from_the_builtin_that_fits(error, builtin):
    assert issubclass(error, shoal.errors.ShoalError)
    assert issubclass(error, builtin)


async def test_streams_that_have_sent_nothing_are_isolated() -> None:
    async def handler(items: list[int]) -> AsyncIterator[list[Any]]:
        if 2 in items:
            raise ValueError(items)
        yield items

    async with opening(handler, **ISOLATED, max_batch_size=4) as (_, call, tasks):
        readers = await read_all(tasks, *map(call, range(4)))
    assert [reader.items for reader in readers] == [[0], [1], [], [3]]
    assert [type(reader.outcome) for reader in readers] == [str, str, ValueError, str]


async def test_a_stream_that_has_sent_an_item_is_never_run_again() -> None:
    runs: list[list[int]] = []

    async def handler(items: list[int]) -> AsyncIterator[list[Any]]:
        runs.append(items)
        if len(items) < 3:
            yield items
            return
        yield [items[0], shoal.SKIP, shoal.END]
        raise ValueError(items)

    async with opening(handler, **ISOLATED, max_batch_size=3) as (_, call, tasks):
        readers = await read_all(tasks, *map(call, range(3)))
    assert [reader.items for reader in readers] == [[0], [1], []]
    assert [type(reader.outcome) for reader in readers] == [ValueError, str, str]
    assert runs == [[0, 1, 2], [1]]


# The errors of a call come where it is awaited, and those of a stream where it is entered


class Broken(Exception):
    pass


def broken(*_: Any) -> Any:
    raise Broken


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
