"""`shoal.retrying`: a call is tried again while it is overloaded, for a moment."""

import inspect
import math
import time
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from typing import Any

import anyio
import httpx
import pytest

import shoal
from batching.callers import LEFT, PENDING, launch, line_up, outcome
from batching.scenes import Held, Recorder, plugged


class Stubborn:
    """An async function that is overloaded until it has been tried so many times."""

    def __init__(self, needed: float) -> None:
        self.tried_at: list[float] = []
        self.errors: list[Exception] = []
        self._needed = needed

    async def __call__(self, item: Any = None) -> Any:
        await anyio.lowlevel.checkpoint()
        self.tried_at.append(anyio.current_time())
        if len(self.tried_at) < self._needed:
            self.errors.append(shoal.errors.Overloaded(f"refused {len(self.tried_at)}"))
            raise self.errors[-1]
        return item


@pytest.mark.parametrize("needed", [1, 2])
@pytest.mark.parametrize("budget", [1, 2, 3, 4])
async def test_ts13_it_succeeds_if_the_time_has_room_for_as_many_tries_as_it_needs(needed, budget):
    stubborn = Stubborn(needed)
    got = await outcome(shoal.retrying(stubborn, max_time_s=budget, delay_s=1)("item"))
    if budget >= needed:
        assert got == "item"
        assert len(stubborn.tried_at) == needed
    else:
        assert got is stubborn.errors[-1]
        assert len(stubborn.tried_at) == budget


async def test_another_error_is_raised_at_once() -> None:
    failures = [shoal.errors.BatcherClosed("closed"), shoal.errors.Overloaded("full")]

    async def call() -> None:
        raise failures.pop()

    with pytest.raises(shoal.errors.BatcherClosed) as caught:
        await shoal.retrying(call)()
    assert caught.value.__context__ is None
    assert not failures


async def test_tries_are_apart_by_the_delay_and_the_last_error_is_raised() -> None:
    stubborn = Stubborn(needed=math.inf)
    with pytest.raises(shoal.errors.Overloaded, match="refused 3"):
        await shoal.retrying(stubborn, max_time_s=2.5, delay_s=1)()
    assert stubborn.tried_at == [0, 1, 2]
    assert anyio.current_time() == 2  # no rest after which there is no try


@pytest.mark.parametrize("times", [{"max_time_s": 0}, {"delay_s": math.inf, "max_time_s": 1e9}])
async def test_the_first_try_is_always_made(times: dict[str, float]) -> None:
    assert await shoal.retrying(Stubborn(needed=1), **times)("item") == "item"
    stubborn = Stubborn(needed=2)
    with pytest.raises(shoal.errors.Overloaded):
        await shoal.retrying(stubborn, **times)("item")
    assert len(stubborn.tried_at) == 1


async def test_it_tries_about_a_hundred_times_in_ten_milliseconds_by_default() -> None:
    stubborn = Stubborn(needed=math.inf)
    with pytest.raises(shoal.errors.Overloaded):
        await shoal.retrying(stubborn)()
    assert 99 <= len(stubborn.tried_at) <= 101
    assert anyio.current_time() < 0.010


async def test_each_call_has_its_own_time() -> None:
    stubborn = Stubborn(needed=math.inf)
    call = shoal.retrying(stubborn, max_time_s=2, delay_s=1)
    await outcome(call())
    await outcome(call())
    assert len(stubborn.tried_at) == 4


async def test_a_slot_that_gets_free_in_time_takes_the_call(held: Held) -> None:
    async with shoal.Batcher(held, max_batch_size=1, max_queued_requests=0) as call:
        async with anyio.create_task_group() as tasks:
            await launch(tasks, call("running"))
            (caller,) = await line_up(tasks, shoal.retrying(call, max_time_s=9, delay_s=2)("next"))
            await anyio.sleep(1)
            assert caller.outcome is PENDING
            held.gate.set()
        assert caller.outcome == "next"
        assert caller.ended_at == anyio.current_time() == held.started_at[1]
    assert held.started_at[1] - held.started_at[0] == 2


async def test_ts10_ts11_a_call_that_was_refused_leaves_nothing_behind(held: Held) -> None:
    options: Any = {"max_batch_size": 1, "max_queued_requests": 1}
    async with plugged(held, "running", **options) as (batcher, call, tasks):
        await line_up(tasks, call("queued"))
        got = await outcome(shoal.retrying(call, max_time_s=3, delay_s=1)("refused"))
        assert type(got) is shoal.errors.Overloaded
        statistics = batcher.statistics()
        assert (statistics.running, statistics.queued, statistics.rejected) == (1, 1, 3)
        assert statistics.cancelled == 0
    assert held.batches == [["running"], ["queued"]]


async def test_a_caller_that_leaves_between_two_tries_is_gone_at_once() -> None:
    stubborn = Stubborn(needed=math.inf)
    async with anyio.create_task_group() as tasks:
        call = shoal.retrying(stubborn, max_time_s=100, delay_s=10)
        (caller,) = await line_up(tasks, call())
        await anyio.sleep(1)
        caller.leave()
        left_at = anyio.current_time()
    assert caller.outcome is LEFT
    assert caller.ended_at == left_at
    assert len(stubborn.tried_at) == 1


@shoal.batch(max_batch_size=2)
async def scaled(items: list[int], by: list[int] = 2) -> list[int]:  # type: ignore[assignment]
    """Multiplies."""
    return [item * factor for item, factor in zip(items, by, strict=True)]


async def test_it_has_the_parameters_and_the_name_of_a_decorated_function() -> None:
    call = shoal.retrying(scaled)
    assert inspect.signature(call) == inspect.signature(scaled)
    assert inspect.iscoroutinefunction(call)
    assert (call.__name__, call.__doc__) == ("scaled", "Multiplies.")
    async with shoal.open_batchers(scaled):
        assert await call(3) == 6
        assert await call(items=3, by=3) == 9
        with pytest.raises(TypeError, match="missing required arguments: 'items'"):
            await call()


async def generator(items: list[int]) -> AsyncIterator[list[int]]:
    yield items


def plain_generator(items: list[int]) -> Iterator[list[int]]:
    yield items


@pytest.mark.parametrize(
    "call", [shoal.batch(generator), shoal.Batcher(generator).call, generator, plain_generator]
)
def test_a_call_that_gives_a_stream_is_refused_with_the_reason(call: Any) -> None:
    with pytest.raises(TypeError, match="returns a stream") as caught:
        shoal.retrying(call)
    assert repr(call) in str(caught.value)
    assert "async with call(item) as stream" in str(caught.value)


@pytest.mark.parametrize("call", [3, None, shoal.Batcher(Recorder())])
def test_what_can_not_be_called_is_refused(call: Any) -> None:
    with pytest.raises(TypeError, match="an async function") as caught:
        shoal.retrying(call)
    assert repr(call) in str(caught.value)


@pytest.mark.parametrize("name", ["max_time_s", "delay_s"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1", TypeError),
        (None, TypeError),
        (True, TypeError),
        (-1, ValueError),
        (math.nan, ValueError),
    ],
)
def test_times_are_checked(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"{name} .*{value!r}"):
        shoal.retrying(Stubborn(1), **{name: value})


def test_a_delay_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"delay_s must be above 0 seconds, not 0\.0"):
        shoal.retrying(Stubborn(1), delay_s=0.0)


# `shoal.raise_for_retry`: what a response of an API says about trying again


def asked_s(status: int, retry_after: str | None, **how: Any) -> float | None:
    """Returns the time that is raised for a response; None if nothing is."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    try:
        shoal.raise_for_retry(httpx.Response(status, headers=headers), **how)
    except shoal.RetryLater as later:
        return later.after_s
    return None


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("seconds", [0, 1, 90])
def test_it_may_ask_for_seconds(status: int, seconds: int) -> None:
    assert asked_s(status, str(seconds)) == seconds


def test_it_may_ask_for_a_date() -> None:
    asked = asked_s(429, formatdate(time.time() + 60, usegmt=True))
    assert asked is not None
    assert 55 < asked <= 60


def test_a_date_in_the_past_asks_for_no_time() -> None:
    assert asked_s(503, "Sun, 06 Nov 1994 08:49:37 GMT") == 0


@pytest.mark.parametrize("retry_after", [None, "", "soon", "-5", "1.5", "nan", "9" * 400])
def test_what_is_no_time_does_not_count(retry_after: str | None) -> None:
    assert asked_s(429, retry_after) is None
    assert asked_s(429, retry_after, otherwise_s=2) == 2


def test_a_server_can_not_ask_for_ever() -> None:
    assert asked_s(429, "999999999") == 600
    assert asked_s(429, "999999999", most_s=5) == 5
    assert asked_s(429, "Fri, 31 Dec 9999 23:59:59 GMT", most_s=5) == 5


@pytest.mark.parametrize("status", [200, 301, 404, 500, 502])
def test_other_responses_are_left_alone(status: int) -> None:
    assert asked_s(status, "5", otherwise_s=1) is None


def test_the_message_says_what_happened() -> None:
    with pytest.raises(shoal.RetryLater, match="asked to be called 5 s later"):
        shoal.raise_for_retry(httpx.Response(503, headers={"retry-after": "5"}))
