"""A user's own rule may be broken in any way, and no caller hangs for it."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

import shoal
from base_exceptions import Panic
from batching.scenes import Held, Recorder, launch, line_up, outcome, plugged, settle


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
    handler = Held()
    batcher = shoal.Batcher(
        handler, max_batch_size=1, max_queued_requests=1, overload="shed_oldest", policy=RefusesBad
    )
    async with plugged(handler, batcher, "runs") as (call, tasks):
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


async def test_what_is_handed_out_twice_is_never_run() -> None:
    handler = Recorder()
    batcher = shoal.Batcher(handler, policy=HandsOutTwice)
    error: Any = None

    async def use() -> None:
        nonlocal error
        async with batcher as call:
            error = await outcome(call(1))

    with pytest.raises(BaseExceptionGroup):
        await use()
    assert isinstance(error, shoal.errors.BatcherClosed)
    assert "take() of the policy" in str(error.__cause__)
    assert handler.batches == []


async def test_who_was_parked_and_can_not_be_filed_hears_of_it() -> None:
    handler = Held()
    batcher = shoal.Batcher(
        handler, max_batch_size=1, max_queued_requests=1, overload="wait", policy=RefusesBad
    )
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
    async with (
        shoal.Batcher(handler, max_batch_size=1, policy=PanicsInRemove) as call,
        anyio.create_task_group() as tasks,
    ):
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

    handler = Held()
    batcher = shoal.Batcher(handler, max_batch_size=1)
    changes: Any = {option: Refuses if option == "policy" else value_of}
    async with plugged(handler, batcher, "runs") as (call, tasks):
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
