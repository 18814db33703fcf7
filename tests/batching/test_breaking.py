"""Breaking: what must not be swallowed goes on, and every caller that waits is told why."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

import shoal
from base_exceptions import Panic
from batching.callers import launch, line_up, outcome
from batching.scenes import Held, Recorder, opening, plugged, settle
from handlers import echo

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

    options: Any = {"max_batch_size": 1, "max_concurrent_batches": 2, "max_queued_requests": 1}
    batcher = shoal.Batcher(Held(), **options, overload="wait")
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


# A user's own rule may be broken in any way, and no caller hangs for it


class InOrder(shoal.policies.WholeQueuePolicy):
    """One at a time; each test breaks another of its methods."""

    def __init__(self, _options: Any) -> None:
        super().__init__()

    def choose(
        self, queue: Sequence[shoal.Request], now: float, pressure: shoal.policies.Pressure | None
    ) -> tuple[Sequence[shoal.Request], shoal.DispatchReason]:
        return queue[:1], shoal.DispatchReason.FULL


class RefusesBad(InOrder):
    def add(self, request: shoal.Request) -> bool:
        if request.item == "bad":
            raise KeyError("add")
        return super().add(request)


class BreaksWhenAsked(InOrder):
    error: BaseException = KeyError("decide")

    def decide(
        self, now: float, pressure: shoal.policies.Pressure | None
    ) -> shoal.policies.Dispatch | shoal.policies.Wait:
        if self._queue:
            raise self.error
        return super().decide(now, pressure)

    def waiting(self) -> Any:
        raise self.error


class PanicsWhenAsked(BreaksWhenAsked):
    error = Panic("decide")


class PanicsInTake(InOrder):
    def take(self, dispatch: shoal.policies.Dispatch) -> list[shoal.Request]:
        raise Panic("take")


class PanicsInRemove(InOrder):
    def remove(self, request: shoal.Request) -> None:
        super().remove(request)
        raise Panic("remove")


class Loses(InOrder):
    def add(self, request: shoal.Request) -> bool:
        return request.item == "lost" or super().add(request)


class HandsOutTwice(InOrder):
    def take(self, dispatch: shoal.policies.Dispatch) -> list[shoal.Request]:
        return super().take(dispatch) * 2


async def test_nobody_is_shed_for_who_can_not_be_filed() -> None:
    options: Any = {"max_batch_size": 1, "max_queued_requests": 1, "policy": RefusesBad}
    async with plugged(Held(), "runs", **options, overload="shed_oldest") as (_, call, tasks):
        (waits,) = await line_up(tasks, call("waits"))
        assert isinstance(await outcome(call("bad")), KeyError)
    assert waits.outcome == "waits"


async def ends(policy: Any, *items: str, **options: Any) -> list[Any]:
    """How calls end under a policy, when the batcher has been closed."""
    batcher = shoal.Batcher(Recorder(), policy=policy, graceful_shutdown_timeout_s=1, **options)
    callers: list[Any] = []
    with anyio.move_on_after(100) as scope:
        try:
            async with anyio.create_task_group() as tasks, batcher as call:
                callers = await launch(tasks, *map(call, items))
        except BaseExceptionGroup:
            pass
    assert not scope.cancelled_caught
    return [caller.outcome for caller in callers]


@pytest.mark.parametrize(
    "policy", [BreaksWhenAsked, Loses, HandsOutTwice, PanicsWhenAsked, PanicsInTake]
)
async def test_whoever_waits_hears_of_it(policy: Any) -> None:
    for error in await ends(policy, "lost"):
        assert isinstance(error, shoal.errors.BatcherClosed)


async def test_what_is_handed_out_twice_is_never_run(recorder: Recorder) -> None:
    batcher = shoal.Batcher(recorder, policy=HandsOutTwice)
    error: Any = None

    async def use() -> None:
        nonlocal error
        async with batcher as call:
            error = await outcome(call(1))

    with pytest.raises(BaseExceptionGroup):
        await use()
    assert isinstance(error, shoal.errors.BatcherClosed)
    assert "take() of the policy" in str(error.__cause__)
    assert recorder.batches == []


async def test_who_was_parked_and_can_not_be_filed_hears_of_it() -> None:
    handler = Held()
    options: Any = {"max_batch_size": 1, "max_queued_requests": 1, "policy": RefusesBad}
    batcher = shoal.Batcher(handler, **options, overload="wait")
    callers: list[Any] = []
    with anyio.move_on_after(100) as scope:
        try:
            async with anyio.create_task_group() as tasks, batcher as call:
                callers = await launch(tasks, call("runs"), call("waits"), call("bad"))
                handler.gate.set()
                await settle()
        except BaseExceptionGroup:
            pass
    assert not scope.cancelled_caught
    assert isinstance(callers[2].outcome, shoal.errors.BatcherClosed | KeyError)


async def test_who_leaves_a_policy_that_panics_leaves_and_the_others_are_answered() -> None:
    handler = Held()
    async with opening(handler, max_batch_size=1, policy=PanicsInRemove) as (_, call, tasks):
        await launch(tasks, call("runs"))
        (stays,) = await line_up(tasks, call("stays"))
        with pytest.raises(Panic), anyio.move_on_after(1):
            await call("leaves")
        handler.gate.set()
    assert stays.outcome == "stays"


@pytest.mark.parametrize("how", [KeyError, Panic, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("option", ["policy", "bucket_by", "batch_size_fn"])
async def test_new_options_that_break_for_one_request_forget_no_other(option, how):
    class Refuses(InOrder):
        def add(self, request: shoal.Request) -> bool:
            return bool(value_of(request.item)) and super().add(request)

    def value_of(item: Any) -> int:
        if item == "bad":
            raise how("no")
        return 1

    changes: Any = {option: Refuses if option == "policy" else value_of}
    async with plugged(Held(), "runs", max_batch_size=1) as (batcher, call, tasks):
        callers = await line_up(tasks, call("a"), call("bad"), call("b"))
        if how in (KeyError, Panic):
            batcher.configure(**changes)
        else:
            with pytest.raises(how):
                batcher.configure(**changes)
        await settle()
        error = callers[1].outcome
        assert type(error) is (KeyError if how is KeyError else shoal.errors.HandlerFailed)
        assert how in (type(error), type(error.__cause__))
    assert [callers[0].outcome, callers[2].outcome] == ["a", "b"]
    assert batcher.statistics().queued == 0


async def test_a_policy_that_is_made_only_once_leaves_nobody_waiting() -> None:
    made: list[Any] = []

    def once(options: Any) -> Any:
        if len(made) == 2:  # one to see whether it is a policy, one to go by
            raise KeyError("made")
        made.append(options)
        return BreaksWhenAsked(options)

    for error in await ends(once, "waits", "too"):
        assert isinstance(error, shoal.errors.BatcherClosed)
