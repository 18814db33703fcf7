"""Breaking: what must not be swallowed goes on, and every caller that waits is told why."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

import shoal
from batching.scenes import launch, outcome

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])
FATAL = pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])


async def coroutine(items: list[Any]) -> list[Any]:
    raise items[0]("from the handler")


def plain(items: list[Any]) -> list[Any]:
    raise items[0]("from the handler")


async def async_generator(items: list[Any]) -> AsyncIterator[list[Any]]:
    yield [0] * len(items)
    raise items[0]("from the handler")


async def opened(batch: Any) -> None:
    (request,) = await batch.join()
    raise request.item("from the handler")


def contains(error: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(contains(part, kind) for part in error.exceptions)
    return isinstance(error, kind)


async def call_once(batcher: shoal.Batcher[Any], item: Any, ended: list[BaseException]) -> None:
    try:
        if batcher.streams:
            async with batcher.call(item) as stream:
                async for _ in stream:
                    pass
        else:
            await batcher.call(item)
    except BaseException as error:
        ended.append(error)
        raise


@BACKENDS
@FATAL
@pytest.mark.parametrize(
    ("handler", "fill"),
    [
        (coroutine, "closed"),
        (plain, "closed"),
        (async_generator, "closed"),
        (opened, "open"),
        (opened, "continuous"),
    ],
)
def test_what_ends_the_program_is_not_swallowed_and_no_caller_hangs(backend, fatal, handler, fill):
    ended: list[BaseException] = []
    batchers: list[shoal.Batcher[Any]] = []

    async def main() -> None:
        batcher: shoal.Batcher[Any] = shoal.Batcher(handler, fill=fill, max_batch_size=1)
        batchers.append(batcher)
        async with batcher, anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call_once, batcher, fatal, ended)

    with pytest.raises(BaseException) as caught:
        anyio.run(main, backend=backend)
    assert contains(caught.value, fatal)
    assert len(ended) == 3
    assert not batchers[0].is_alive


class OwnFatal(BaseException):
    """Like KeyboardInterrupt, but asyncio and the test runner don't know it."""


class BreaksOfThree(shoal.policies.WholeQueuePolicy):
    """A rule that breaks once all three are queued."""

    def __init__(self, _options: Any) -> None:
        super().__init__()

    def choose(
        self, queue: Sequence[shoal.Request], now: float, pressure: shoal.policies.Pressure | None
    ) -> Any:
        if len(queue) == 3:
            raise OwnFatal
        return shoal.policies.Wait(None)


@pytest.mark.real_time
async def test_callers_elsewhere_are_told_what_broke_the_batcher() -> None:
    batcher = shoal.Batcher(plain, max_batch_size=1, policy=BreaksOfThree)
    outcomes: list[Any] = []

    async def caller(item: Any) -> None:
        outcomes.append(await outcome(batcher.call(item)))

    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with anyio.create_task_group() as tasks:
            await tasks.start(batcher.run)
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as callers:
                    for _ in range(3):
                        callers.start_soon(caller, OwnFatal)
            with pytest.raises(shoal.errors.BatcherClosed) as late:
                await batcher.call(1)
            assert isinstance(late.value.__cause__, OwnFatal)
    assert contains(caught.value, OwnFatal)
    assert [type(error) for error in outcomes] == [shoal.errors.BatcherClosed] * 3
    assert all(isinstance(error.__cause__, OwnFatal) for error in outcomes)
    assert len(set(map(id, outcomes))) == 3
    assert isinstance(batcher.failure, OwnFatal)
    assert not batcher.is_alive
    assert batcher.statistics().state == "broken"
    assert batcher.statistics().failed == 3


class _BrokenOnPurpose(Exception):
    pass


async def test_a_bug_in_the_batcher_fails_every_caller_in_the_queue_parked_and_running(monkeypatch):
    bug = _BrokenOnPurpose("a bug of ours")

    def broken_decide(*_: Any) -> Any:
        raise bug

    gate = anyio.Event()

    async def handler(items: list[Any]) -> list[Any]:
        await gate.wait()
        return items

    batcher = shoal.Batcher(
        handler, max_batch_size=1, max_concurrent_batches=2, max_queued_requests=1, overload="wait"
    )
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012
        async with anyio.create_task_group() as tasks:
            call = await tasks.start(batcher.run)
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as callers:
                    started = await launch(callers, *map(call, range(5)))
                    statistics = batcher.statistics()
                    assert (statistics.running, statistics.queued, statistics.parked) == (2, 1, 2)
                    monkeypatch.setattr("shoal.core.forming.former.Former.decide", broken_decide)
                    started[0].leave()
    assert contains(caught.value, _BrokenOnPurpose)
    errors = [caller.outcome for caller in started[1:]]
    assert [type(error) for error in errors] == [shoal.errors.BatcherClosed] * 4
    assert all(error.__cause__ is bug for error in errors)
    assert batcher.failure is bug
    assert not batcher.is_alive


@pytest.mark.real_time
def test_the_end_of_asyncios_loop_breaks_no_batcher(caplog: pytest.LogCaptureFixture) -> None:
    async def echo(items: list[int]) -> list[int]:
        return items

    batchers = [shoal.Batcher(echo) for _ in range(8)]

    async def keep_open(batcher: shoal.Batcher[Any]) -> None:
        async with batcher:
            await anyio.sleep_forever()

    async def main() -> None:
        tasks = [asyncio.create_task(keep_open(batcher)) for batcher in batchers]
        await anyio.sleep(0.01)
        assert await batchers[0].call(1) == 1
        assert not any(task.done() for task in tasks)

    asyncio.run(main())  # which cancels the tasks that are left, all of them
    assert {batcher.statistics().state for batcher in batchers} == {"closed"}
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
