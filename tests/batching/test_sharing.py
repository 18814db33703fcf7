"""Single flight and the cache: equal calls share one request and one result."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from batching.scenes import LEFT, PENDING, line_up, outcome, settle
from shoal.batching.calls.shared_stream import REPLAYED_MOST
from shoal.errors import BatcherClosed, DeadlineExceeded, Overloaded, SlowReader
from shoal.testing import run_virtually

pytestmark = pytest.mark.anyio


class Second:
    """A handler that takes a second, and notes its items."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.cancelled = 0

    async def results(self, items: list[Any]) -> list[Any]:
        self.items += items
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return [ValueError(item) if item == "bad" else ("result", item) for item in items]

    async def steps(self, items: list[Any]) -> Any:
        self.items += items
        try:
            for nth in range(4):
                await anyio.sleep(1)
                yield [f"{item}.{nth}" for item in items]
                if "bad" in items and nth == 1:
                    raise ValueError("bad")
        except (anyio.get_cancelled_exc_class(), GeneratorExit):
            self.cancelled += 1
            raise


def opened(handler: Any, **options: Any) -> shoal.Batcher[Any]:
    return shoal.Batcher(handler, **{"dedupe": True, "max_batch_size": 64} | options)


def balanced(batcher: shoal.Batcher[Any], calls: int) -> None:
    """Checks that each call was counted once."""
    counts = batcher.statistics()
    assert (
        counts.finished
        + counts.failed
        + counts.cancelled
        + counts.expired
        + counts.rejected
        + counts.shed
        == calls
    )


# One result


async def test_equal_items_share_one_place_and_one_result():
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call, anyio.create_task_group() as tasks:
        first = await line_up(tasks, call("a"), call("a"), call("b"), call("a"))
        await anyio.sleep(0.5)  # now they run
        later = await line_up(tasks, call("a"), call("b"))
    assert handler.items == ["a", "b"]
    assert [one.outcome[1] for one in (*first, *later)] == ["a", "a", "b", "a", "a", "b"]
    assert {one.ended_at for one in (*first, *later) if one.outcome[1] == "a"} == {1.0}
    assert batcher.statistics().shared == 4
    assert batcher.statistics().batch_size.sum == 2
    balanced(batcher, 6)


async def test_a_call_after_the_result_runs_again():
    handler = Second()
    async with opened(handler.results) as call:
        for _ in range(2):
            assert await call("a") == ("result", "a")
    assert handler.items == ["a", "a"]


async def test_without_the_option_nothing_is_shared():
    handler = Second()
    async with opened(handler.results, dedupe=False) as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("a"), call("a"))
    assert handler.items == ["a", "a"]


DIFFERENT = [1, True, 1.0, "1", b"1", 0.0, -0.0, None, (1,), (True,), [1], {"a": 1}, {"a": True}]


async def test_items_that_differ_are_not_shared():
    handler = Second()
    async with opened(handler.results) as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, *[call(item) for item in DIFFERENT])
    assert len(handler.items) == len(DIFFERENT)
    assert [type(one.outcome[1]) for one in callers] == [type(item) for item in DIFFERENT]


async def test_items_that_can_t_be_hashed_are_shared():
    handler = Second()
    async with opened(handler.results) as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call({"a": [1, 2]}), call({"a": [1, 2]}), call({"a": [1, 3]}))
    assert len(handler.items) == 2


async def test_a_key_function_says_what_is_equal():
    handler = Second()
    batcher = opened(handler.results, dedupe=str.lower)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call("A"), call("a"), call("b"))
    assert handler.items == ["A", "b"]
    assert callers[1].outcome == ("result", "A")


@pytest.mark.parametrize(
    ("key", "item", "message"),
    [
        (lambda item: [item], "a", r"must return a hashable key, such as a tuple, not \['a'\]"),
        (lambda item: 1 / 0, "a", "division by zero"),
        (True, lambda: None, r"can't be pickled.*dedupe=lambda item: item\.id"),
    ],
    ids=["unhashable", "raises", "unpicklable"],
)
async def test_an_item_without_a_key_fails_its_caller_alone(key, item, message):
    handler = Second()
    batcher = opened(handler.results, dedupe=key)
    async with batcher as call, anyio.create_task_group() as tasks:
        others = [] if callable(key) else await line_up(tasks, call("b"))
        with pytest.raises((TypeError, ZeroDivisionError), match=message):
            await call(item)
    assert [one.outcome for one in others] == [("result", "b")] * len(others)


async def test_users_do_not_share_unless_the_key_function_says_so():
    for dedupe, batch in ((True, ["a", "a"]), (lambda item: item, ["a"])):
        handler = Second()
        batcher = opened(handler.results, dedupe=dedupe)
        async with batcher as call, anyio.create_task_group() as tasks:
            await line_up(
                tasks,
                call.options(metadata={"user": 1})("a"),
                call.options(metadata={"user": 2})("a"),
                call.options(metadata={"user": 1})("a"),
            )
        assert handler.items == batch


async def test_a_call_may_share_nothing():
    handler = Second()
    batcher = opened(handler.results, cache=shoal.Cache(max_size=9, ttl_s=60))
    async with batcher as call:
        await call("a")
        async with anyio.create_task_group() as tasks:
            await line_up(tasks, call.options(share=False)("a"), call.options(share=False)("a"))
        assert await call("a") == ("result", "a")
    assert handler.items == ["a", "a", "a"]
    assert batcher.statistics().cache_hits == 1
    balanced(batcher, 4)
    with pytest.raises(TypeError, match="share must be True or False, not 'no'"):
        call.options(share="no")


# Leaving


async def test_a_caller_that_leaves_takes_it_from_nobody():
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call, anyio.create_task_group() as tasks:
        first, second, third = await line_up(tasks, call("a"), call("a"), call("a"))
        await anyio.sleep(0.5)
        first.leave()
        third.leave()
    assert (first.outcome, second.outcome, third.outcome) == (LEFT, ("result", "a"), LEFT)
    assert handler.cancelled == 0
    balanced(batcher, 3)


async def test_the_last_caller_that_leaves_cancels_it():
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call("a"), call("a"))
        await anyio.sleep(0.5)
        for caller in callers:
            caller.leave()
        await settle()
        assert handler.cancelled == 1
        again = await line_up(tasks, call("a"))
    assert again[0].outcome == ("result", "a")
    assert handler.items == ["a", "a"]
    assert batcher.statistics().cancelled == 2
    balanced(batcher, 3)


async def test_a_queued_request_that_all_have_left_never_runs():
    handler = Second()
    batcher = opened(handler.results, max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("x"))
        callers = await line_up(tasks, call("a"), call("a"))
        for caller in callers:
            caller.leave()
        await settle()
        assert batcher.statistics().queued == 0
    assert handler.items == ["x"]
    balanced(batcher, 3)


async def test_a_caller_that_leaves_with_the_result_loses_nothing_of_others():
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call("a"), call("a"), call("a"))

        async def leave() -> None:
            await anyio.sleep(1)
            callers[0].leave()

        tasks.start_soon(leave)
    assert [one.outcome for one in callers[1:]] == [("result", "a")] * 2
    balanced(batcher, 3)


# Errors and time limits


async def test_errors_are_shared_and_each_caller_has_its_own():
    handler = Second()
    batcher = opened(handler.results, cache=shoal.Cache(max_size=9, ttl_s=60))
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, call("bad"), call("bad"))
        errors = [one.outcome for one in callers]
        assert [type(error) for error in errors] == [ValueError, ValueError]
        assert errors[0] is not errors[1]
        assert type(await outcome(call("bad"))) is ValueError  # it was not kept
    assert handler.items == ["bad", "bad"]
    assert batcher.statistics().failed == 3
    balanced(batcher, 3)


@pytest.mark.parametrize("first_s", [0.5, 9])
async def test_deadlines_are_each_callers_own(first_s):
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call, anyio.create_task_group() as tasks:
        one, other = await line_up(
            tasks,
            call.options(deadline_s=first_s)("a"),
            call.options(deadline_s=9.5 - first_s)("a"),
        )
    late, well = (one, other) if first_s < 1 else (other, one)
    assert type(late.outcome) is DeadlineExceeded
    assert late.ended_at == 0.5
    assert well.outcome == ("result", "a")
    assert batcher.statistics().expired == 1
    balanced(batcher, 2)


async def test_time_in_the_queue_is_each_callers_own():
    handler = Second()
    batcher = opened(handler.results, max_batch_size=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("x"))
        one, other = await line_up(tasks, call("a"), call.options(queue_timeout_s=0.5)("a"))
    assert type(other.outcome) is DeadlineExceeded
    assert one.outcome == ("result", "a")


async def test_when_all_are_too_late_the_handler_is_cancelled():
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call.options(deadline_s=0.2)("a"), call.options(deadline_s=0.5)("a"))
    assert handler.cancelled == 1
    assert batcher.statistics().expired == 2
    balanced(batcher, 2)


async def test_a_full_queue_takes_who_needs_no_place():
    handler = Second()
    batcher = opened(handler.results, max_batch_size=1, max_queued_requests=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("x"))
        await settle()
        callers = await line_up(tasks, call("a"), call("a"), call("b"))
    assert [one.outcome for one in callers[:2]] == [("result", "a")] * 2
    assert type(callers[2].outcome) is Overloaded
    balanced(batcher, 4)


async def test_a_request_that_is_shed_fails_all_that_share_it():
    handler = Second()
    batcher = opened(
        handler.results, max_batch_size=1, max_queued_requests=1, overload="shed_oldest"
    )
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("x"))
        await settle()
        callers = await line_up(tasks, call("a"), call("a"), call("b"))
    assert [type(one.outcome) for one in callers[:2]] == [Overloaded] * 2
    assert callers[2].outcome == ("result", "b")
    balanced(batcher, 4)


async def test_closing_answers_all():
    handler = Second()
    batcher = opened(handler.results)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, call("a"), call("a"))
    assert [one.outcome for one in callers] == [("result", "a")] * 2


async def test_a_batcher_that_ends_fails_all():
    handler = Second()
    batcher = opened(handler.results, graceful_shutdown_timeout_s=0.5)
    async with anyio.create_task_group() as tasks, batcher as call:
        callers = await line_up(tasks, call("a"), call("a"))
    assert [type(one.outcome) for one in callers] == [BatcherClosed] * 2
    balanced(batcher, 2)


async def test_a_handler_that_calls_itself_does_not_wait_for_itself():
    depths = []

    async def handler(items: list[int]) -> list[int]:
        depths.append(len(depths))
        if len(depths) < 3:
            return [await call(items[0])]
        return items

    batcher = opened(handler, max_concurrent_batches=5)
    async with batcher as call:
        assert await call(7) == 7
    assert len(depths) == 3


# Many at once


async def test_map_shares_among_its_items_and_with_others():
    handler = Second()
    batcher = opened(handler.results, cache=shoal.Cache(max_size=9, ttl_s=60))
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("a"))
        results = await call.map(["a", "b", "b", "c"])
        assert [result[1] for result in results] == ["a", "b", "b", "c"]
        assert await call.map(["c", "b"]) == [("result", "c"), ("result", "b")]
        assert await call.map([]) == []
    assert sorted(handler.items) == ["a", "b", "c"]
    balanced(batcher, 7)


async def test_map_raises_the_first_error_or_returns_errors():
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call:
        with pytest.raises(ValueError, match="bad"):
            await call.map(["a", "bad", "bad"])
        results = await call.map(["a", "bad"], return_exceptions=True)
        assert [type(result) for result in results] == [tuple, ValueError]
    balanced(batcher, 5)


async def test_a_map_that_leaves_drops_what_nobody_else_waits_for():
    handler = Second()
    batcher = opened(handler.results)
    async with batcher as call, anyio.create_task_group() as tasks:
        other = await line_up(tasks, call("a"))
        with anyio.move_on_after(0.5):
            await call.map(["a", "b"])
    assert other[0].outcome == ("result", "a")
    balanced(batcher, 3)


async def test_a_map_that_does_not_fit_makes_no_call():
    handler = Second()
    batcher = opened(handler.results, max_batch_size=1, max_queued_requests=1)
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("x"))
        await settle()
        with pytest.raises(Overloaded):
            await call.map(["a", "b"])
        assert batcher.statistics().queued == 0
    assert handler.items == ["x"]


# The cache


async def test_a_result_is_kept_for_its_time():
    handler = Second()
    batcher = opened(handler.results, cache=shoal.Cache(max_size=9, ttl_s=10))
    async with batcher as call:
        await call("a")
        for _ in range(3):
            started = anyio.current_time()
            assert await call("a") == ("result", "a")
            assert anyio.current_time() == started
            await anyio.sleep(3)
        await anyio.sleep(1)
        await call("a")
    assert handler.items == ["a", "a"]
    assert batcher.statistics().cache_hits == 3
    balanced(batcher, 5)


async def test_the_least_recently_used_result_is_dropped():
    handler = Second()
    async with opened(handler.results, cache=shoal.Cache(max_size=2, ttl_s=99)) as call:
        for item in ("a", "b", "a", "c", "a", "b"):
            await call(item)
    assert handler.items == ["a", "b", "c", "b"]


async def test_a_cache_shares_requests_as_well():
    handler = Second()
    batcher = opened(handler.results, dedupe=False, cache=shoal.Cache(max_size=2, ttl_s=99))
    async with batcher as call, anyio.create_task_group() as tasks:
        await line_up(tasks, call("a"), call("a"))
    assert handler.items == ["a"]


async def test_a_hit_is_a_checkpoint():
    batcher = opened(Second().results, cache=shoal.Cache(max_size=2, ttl_s=99))
    async with batcher as call:
        await call("a")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call("a")
        assert scope.cancelled_caught


async def test_what_is_made_after_the_cache_was_emptied_is_made_anew():
    handler = Second()
    batcher = opened(handler.results, cache=shoal.Cache(max_size=2, ttl_s=99))
    async with batcher as call, anyio.create_task_group() as tasks:
        before = await line_up(tasks, call("a"))
        await anyio.sleep(0.5)
        batcher.find().forget_results()
        after = await line_up(tasks, call("a"))
        await anyio.sleep(0.6)  # the first has ended, and its result is not kept
        assert before[0].outcome == ("result", "a")
        assert after[0].outcome == PENDING
        await line_up(tasks, call("a"))
    assert handler.items == ["a", "a"]


async def test_it_can_be_turned_on_and_off_while_calls_wait():
    handler = Second()
    batcher = opened(handler.results, dedupe=False, cache=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, call("a"))
        batcher.configure(dedupe=True)
        callers += await line_up(tasks, call("a"), call("a"))
        batcher.configure(dedupe=False)
        callers += await line_up(tasks, call("a"))
        batcher.configure(cache=shoal.Cache(max_size=2, ttl_s=9))
        callers += await line_up(tasks, call("a"))
    assert [one.outcome for one in callers] == [("result", "a")] * 5
    assert len(handler.items) == 4
    balanced(batcher, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dedupe": 1}, "dedupe must be .* not 1"),
        ({"cache": 100}, r"cache must be a Cache or None, not 100; .*Cache\(max_size=1000"),
        ({"dedupe": True, "split": 1}, "split"),
    ],
)
def test_bad_options_are_told(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        shoal.Batcher(Second().results, **options)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ({"max_size": 0, "ttl_s": 1}, "max_size must be at least 1, not 0"),
        ({"max_size": 1, "ttl_s": 0}, "ttl_s must be above 0 seconds, and finite, not 0"),
        ({"max_size": 1, "ttl_s": "x"}, "ttl_s must be a number of seconds, such as 60, not 'x'"),
    ],
)
def test_a_bad_cache_is_told(cache, message):
    with pytest.raises((TypeError, ValueError), match=message):
        shoal.Cache(**cache)


# Streams


async def read(call: Any, item: str, most: int = 9999) -> list[Any]:
    """Reads a stream; its error is its last item."""
    got: list[Any] = []
    try:
        async with call(item) as stream:
            async for one in stream:
                got.append(one)
                if len(got) == most:
                    break
    except Exception as error:
        got.append(error)
    return got


WHOLE = ["a.0", "a.1", "a.2", "a.3"]


async def test_readers_share_a_stream_from_its_start():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call, anyio.create_task_group() as tasks:
        first = await line_up(tasks, read(call, "a"), read(call, "a"))
        await anyio.sleep(2.5)
        later = await line_up(tasks, read(call, "a"))
    assert [one.outcome for one in (*first, *later)] == [WHOLE] * 3
    assert {one.ended_at for one in (*first, *later)} == {4.0}
    assert handler.items == ["a"]
    assert batcher.statistics().shared == 2
    balanced(batcher, 3)


async def test_a_reader_that_leaves_takes_the_stream_from_nobody():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call, anyio.create_task_group() as tasks:
        one, other = await line_up(tasks, read(call, "a", most=1), read(call, "a"))
    assert one.outcome == ["a.0"]
    assert other.outcome == WHOLE
    assert handler.cancelled == 0
    balanced(batcher, 2)


async def test_the_last_reader_that_leaves_closes_the_stream():
    handler = Second()
    batcher = opened(handler.steps)
    async with batcher as call:
        async with anyio.create_task_group() as tasks:
            await line_up(tasks, read(call, "a", most=1), read(call, "a", most=2))
        await settle()
        assert handler.cancelled == 1
    balanced(batcher, 2)


async def test_an_error_in_mid_stream_is_shared_after_the_items():
    handler = Second()
    batcher = opened(handler.steps, cache=shoal.Cache(max_size=9, ttl_s=60))
    async with batcher as call, anyio.create_task_group() as tasks:
        callers = await line_up(tasks, read(call, "bad"), read(call, "bad"))
    for caller in callers:
        assert caller.outcome[:2] == ["bad.0", "bad.1"]
        assert type(caller.outcome[2]) is ValueError
    assert callers[0].outcome[2] is not callers[1].outcome[2]
    balanced(batcher, 2)


async def test_a_slow_reader_fails_alone():
    handler = Second()
    batcher = opened(handler.steps, stream_buffer=1, slow_reader_timeout_s=2)
    async with batcher as call, anyio.create_task_group() as tasks, call("a") as slow:
        (quick,) = await line_up(tasks, read(call, "a"))
        await anyio.sleep(20)
        assert await anext(slow) == "a.0"
        with pytest.raises(SlowReader):
            await anext(slow)
    assert quick.outcome == WHOLE
    balanced(batcher, 2)


async def test_a_lone_slow_reader_ends_the_stream():
    handler = Second()
    batcher = opened(handler.steps, stream_buffer=1, slow_reader_timeout_s=2)
    async with batcher as call, call("a") as slow:
        await anyio.sleep(20)
        assert handler.cancelled == 1
        with pytest.raises(SlowReader):
            async for _ in slow:
                pass
    balanced(batcher, 1)


async def test_a_slow_reader_that_reads_again_goes_on():
    handler = Second()
    batcher = opened(handler.steps, stream_buffer=1, slow_reader_timeout_s=5)
    async with batcher as call, anyio.create_task_group() as tasks, call("a") as slow:
        (quick,) = await line_up(tasks, read(call, "a"))
        await anyio.sleep(3)
        assert [item async for item in slow] == WHOLE
    assert quick.outcome == WHOLE
    balanced(batcher, 2)


async def test_a_whole_stream_is_kept():
    handler = Second()
    batcher = opened(handler.steps, cache=shoal.Cache(max_size=9, ttl_s=60))
    async with batcher as call:
        assert await read(call, "a") == WHOLE
        started = anyio.current_time()
        assert await read(call, "a") == WHOLE
        assert await read(call, "a", most=1) == WHOLE[:1]
        assert anyio.current_time() == started
    assert handler.items == ["a"]
    balanced(batcher, 3)


async def test_a_long_stream_is_not_joined_late():
    begun = []

    async def long(items: list[str]) -> Any:
        begun.append(items)
        for nth in range(REPLAYED_MOST + 10):
            await anyio.sleep(1)
            yield [nth] * len(items)

    batcher = opened(long, max_concurrent_batches=2, cache=shoal.Cache(max_size=9, ttl_s=1e6))
    async with batcher as call, anyio.create_task_group() as tasks:
        first = await line_up(tasks, read(call, "a"))
        await anyio.sleep(REPLAYED_MOST - 0.5)
        joined = await line_up(tasks, read(call, "a"))
        await anyio.sleep(3)
        late = await line_up(tasks, read(call, "a"))
    assert len(begun) == 2
    for one in (*first, *joined, *late):
        assert one.outcome == list(range(REPLAYED_MOST + 10))


@pytest.mark.parametrize("fill", ["open", "continuous"])
@pytest.mark.parametrize("streams", [False, True])
async def test_requests_of_open_batches_are_shared(fill, streams):
    items = []

    async def handler(batch: Any) -> None:
        async for request in batch:
            items.append(request.item)
            await anyio.sleep(1)
            if streams:
                for nth in range(2):
                    await request.send(f"{request.item}.{nth}")
                request.finish()
            else:
                request.finish(("result", request.item))

    batcher = opened(handler, fill=fill, streams=streams)
    async with batcher as call, anyio.create_task_group() as tasks:
        make = partial(read, call) if streams else call
        callers = await line_up(tasks, make("a"), make("a"), make("b"))
    assert sorted(items) == ["a", "b"]
    expected = ["a.0", "a.1"] if streams else ("result", "a")
    assert [one.outcome for one in callers[:2]] == [expected] * 2


@pytest.mark.real_time
async def test_calls_from_threads_share():
    handler = Second()
    batcher = opened(handler.results, cache=shoal.Cache(max_size=9, ttl_s=60))

    async with batcher as call:
        await call("a")
        assert await anyio.to_thread.run_sync(call.from_thread, "a") == ("result", "a")
    assert handler.items == ["a"]


# Everything at once

STEPS = st.one_of(
    st.tuples(st.just("call"), st.sampled_from("abc"), st.sampled_from([None, 0.4, 1.4, 5])),
    st.tuples(st.just("leave"), st.integers(0, 9), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0, 0.3, 1]), st.none()),
)


@settings(max_examples=60)
@given(
    steps=st.lists(STEPS, max_size=14),
    most=st.sampled_from([1, 2, 64]),
    cache=st.sampled_from([None, shoal.Cache(max_size=2, ttl_s=2)]),
    backend=st.sampled_from(["trio", "asyncio"]),
)
def test_every_call_ends_once_and_with_its_own_item(steps, most, cache, backend):
    async def play() -> None:
        handler = Second()
        batcher = opened(handler.results, max_batch_size=most, cache=cache)
        callers: list[Any] = []
        async with batcher as call, anyio.create_task_group() as tasks:
            for what, value, deadline_s in steps:
                if what == "call":
                    made = call.options(deadline_s=deadline_s)(value)
                    callers += [(value, one) for one in await line_up(tasks, made)]
                elif what == "wait":
                    await anyio.sleep(value)
                elif callers:
                    callers[value % len(callers)][1].leave()
        for item, caller in callers:
            assert caller.outcome in (LEFT, ("result", item)) or isinstance(
                caller.outcome, DeadlineExceeded
            )
        balanced(batcher, len(callers))
        sharing = batcher.find()._sharing
        assert sharing is not None
        assert not sharing._flights

    run_virtually(play, backend=backend)
