"""Single flight and the cache: equal calls share one request and one result."""

from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from base_exceptions import Panic
from batching.callers import LEFT, PENDING, Caller, launch, line_up, read
from batching.scenes import opening, settle
from batching.sharing_scenes import A_MINUTE, WHOLE, Second, balanced, opened, sharing
from shoal.errors import DeadlineExceeded, Overloaded
from shoal.testing import run_virtually

EACH_KIND = pytest.mark.parametrize("kind", ["results", "steps"])
ANSWERS = {"results": ("result", "a"), "steps": WHOLE}


def ask(kind: str, call: Any, item: str) -> Any:
    return call(item) if kind == "results" else read(call(item))


def end_of(caller: Caller) -> Any:
    """The error, of a stream after its items."""
    return caller.outcome[-1] if isinstance(caller.outcome, list) else caller.outcome


# One result


async def test_equal_items_share_one_place_and_one_result():
    async with sharing(calls=6) as (handler, batcher, call, tasks):
        first = await line_up(tasks, call("a"), call("a"), call("b"), call("a"))
        await anyio.sleep(0.5)  # now they run
        later = await line_up(tasks, call("a"), call("b"))
    assert handler.items == ["a", "b"]
    assert [one.outcome[1] for one in (*first, *later)] == ["a", "a", "b", "a", "a", "b"]
    assert {one.ended_at for one in (*first, *later) if one.outcome[1] == "a"} == {1.0}
    assert batcher.statistics().shared == 4
    assert batcher.statistics().batch_size.sum == 2


async def test_a_call_after_the_result_runs_again():
    async with sharing() as (handler, _, call, _):
        for _ in range(2):
            assert await call("a") == ("result", "a")
    assert handler.items == ["a", "a"]


DIFFERENT = [1, True, 1.0, "1", b"1", 0.0, -0.0, None, (1,), (True,), [1], {"a": 1}, {"a": True}]


async def test_items_that_differ_are_not_shared():
    async with sharing() as (handler, _, call, tasks):
        callers = await line_up(tasks, *[call(item) for item in DIFFERENT])
    assert len(handler.items) == len(DIFFERENT)
    assert [type(one.outcome[1]) for one in callers] == [type(item) for item in DIFFERENT]


async def test_items_that_can_t_be_hashed_are_shared():
    async with sharing() as (handler, _, call, tasks):
        await line_up(tasks, call({"a": [1, 2]}), call({"a": [1, 2]}), call({"a": [1, 3]}))
    assert len(handler.items) == 2


async def test_a_key_function_says_what_is_equal():
    async with sharing(dedupe=str.lower) as (handler, _, call, tasks):
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
    async with sharing(dedupe=key) as (_, _, call, tasks):
        others = [] if callable(key) else await line_up(tasks, call("b"))
        with pytest.raises((TypeError, ZeroDivisionError), match=message):
            await call(item)
    assert [one.outcome for one in others] == [("result", "b")] * len(others)


@pytest.mark.parametrize("cache", [None, A_MINUTE], ids=["shared", "kept"])
@EACH_KIND
async def test_keys_that_can_no_longer_be_compared_keep_no_caller_waiting(kind, cache):
    @dataclass(eq=False)
    class Key:
        name: str

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if is_broken:
                raise Panic
            return isinstance(other, Key) and other.name == self.name

    is_broken = False
    async with sharing(kind, dedupe=Key, cache=cache, calls=6) as (_, _, call, tasks):
        for names in ("abc", "bac"):
            callers = await line_up(tasks, *(ask(kind, call, name) for name in names))
            is_broken = names == "abc"
            callers[2].leave()
            await anyio.sleep(9)
            is_broken = False
            assert PENDING not in [one.outcome for one in callers]
            assert callers[names.index("a")].outcome == ANSWERS[kind]
            assert callers[2].outcome == LEFT


async def test_users_do_not_share_unless_the_key_function_says_so():
    for dedupe, batch in ((True, ["a", "a"]), (lambda item: item, ["a"])):
        handler = Second()
        async with opening(opened(handler.results, dedupe=dedupe)) as (_, call, tasks):
            await line_up(
                tasks,
                call.options(metadata={"user": 1})("a"),
                call.options(metadata={"user": 2})("a"),
                call.options(metadata={"user": 1})("a"),
            )
        assert handler.items == batch


async def test_a_call_may_share_nothing():
    async with sharing(cache=A_MINUTE) as (handler, batcher, call, _):
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


@EACH_KIND
async def test_a_caller_that_leaves_takes_it_from_nobody(kind):
    async with sharing(kind, calls=3) as (handler, _, call, tasks):
        first, second, third = await line_up(tasks, *[ask(kind, call, "a") for _ in range(3)])
        await anyio.sleep(0.5)
        first.leave()
        third.leave()
    assert (first.outcome, second.outcome, third.outcome) == (LEFT, ANSWERS[kind], LEFT)
    assert handler.cancelled == 0


@EACH_KIND
async def test_the_last_caller_that_leaves_cancels_it(kind):
    async with sharing(kind, calls=3) as (handler, batcher, call, tasks):
        callers = await line_up(tasks, ask(kind, call, "a"), ask(kind, call, "a"))
        await anyio.sleep(0.5)
        for caller in callers:
            caller.leave()
        await settle()
        assert handler.cancelled == 1
        again = await line_up(tasks, ask(kind, call, "a"))
    assert again[0].outcome == ANSWERS[kind]
    assert handler.items == ["a", "a"]
    assert batcher.statistics().cancelled == 2


async def test_a_queued_request_that_all_have_left_never_runs():
    async with sharing(calls=3, max_batch_size=1) as (handler, batcher, call, tasks):
        await line_up(tasks, call("x"))
        callers = await line_up(tasks, call("a"), call("a"))
        for caller in callers:
            caller.leave()
        await settle()
        assert batcher.statistics().queued == 0
    assert handler.items == ["x"]


async def test_a_caller_that_leaves_with_the_result_loses_nothing_of_others():
    async with sharing(calls=3) as (_, _, call, tasks):
        callers = await line_up(tasks, call("a"), call("a"), call("a"))

        async def leave() -> None:
            await anyio.sleep(1)
            callers[0].leave()

        tasks.start_soon(leave)
    assert [one.outcome for one in callers[1:]] == [("result", "a")] * 2


# Errors and time limits


@EACH_KIND
async def test_errors_are_shared_and_each_caller_has_its_own(kind):
    async with sharing(kind, calls=3, cache=A_MINUTE) as (handler, batcher, call, _):
        async with anyio.create_task_group() as tasks:
            callers = await line_up(tasks, ask(kind, call, "bad"), ask(kind, call, "bad"))
        assert [type(end_of(one)) for one in callers] == [ValueError, ValueError]
        assert end_of(callers[0]) is not end_of(callers[1])
        async with anyio.create_task_group() as tasks:
            (again,) = await line_up(tasks, ask(kind, call, "bad"))
        assert type(end_of(again)) is ValueError
    if kind == "steps":
        assert [one.outcome[:2] for one in callers] == [["bad.0", "bad.1"]] * 2
    assert handler.items == ["bad", "bad"], "the error was kept"
    assert batcher.statistics().failed == 3


@EACH_KIND
@pytest.mark.parametrize(("first_s", "other_s"), [(0.5, 9), (9, 0.5), (0.5, None)])
async def test_deadlines_are_each_callers_own(kind, first_s, other_s):
    async with sharing(kind, calls=2) as (handler, batcher, call, tasks):
        one, other = await line_up(
            tasks,
            ask(kind, call.options(timeout_s=first_s), "a"),
            ask(kind, call.options(timeout_s=other_s), "a"),
        )
    late, well = (one, other) if first_s == 0.5 else (other, one)
    assert type(end_of(late)) is DeadlineExceeded
    assert late.ended_at == 0.5
    assert well.outcome == ANSWERS[kind]
    assert handler.items == ["a"]
    assert handler.cancelled == 0
    assert batcher.statistics().expired == 1


@EACH_KIND
async def test_time_in_the_queue_is_each_callers_own(kind):
    async with sharing(kind, calls=3, max_batch_size=1) as (_, _, call, tasks):
        await line_up(tasks, ask(kind, call, "x"))
        one, other = await line_up(
            tasks, ask(kind, call, "a"), ask(kind, call.options(queue_timeout_s=0.5), "a")
        )
    assert type(end_of(other)) is DeadlineExceeded
    assert one.outcome == ANSWERS[kind]


@EACH_KIND
async def test_when_all_are_too_late_the_handler_is_cancelled(kind):
    async with sharing(kind, calls=2) as (handler, batcher, call, tasks):
        for limit_s in (0.2, 0.5):
            await line_up(tasks, ask(kind, call.options(timeout_s=limit_s), "a"))
        await anyio.sleep(0.4)
        assert handler.cancelled == 0
        await anyio.sleep(0.2)
        assert handler.cancelled == 1
    assert batcher.statistics().expired == 2


async def test_a_full_queue_takes_who_needs_no_place():
    async with sharing(calls=4, max_batch_size=1, max_queued_requests=1) as (_, _, call, tasks):
        await launch(tasks, call("x"))
        callers = await line_up(tasks, call("a"), call("a"), call("b"))
    assert [one.outcome for one in callers[:2]] == [("result", "a")] * 2
    assert type(callers[2].outcome) is Overloaded


async def test_a_handler_that_calls_itself_does_not_wait_for_itself():
    depths = []

    async def handler(items: list[int]) -> list[int]:
        depths.append(len(depths))
        if len(depths) < 3:
            return [await call(items[0])]
        return items

    async with opened(handler, max_concurrent_batches=5) as call:
        assert await call(7) == 7
    assert len(depths) == 3


# Many at once


async def test_map_shares_among_its_items_and_with_others():
    async with sharing(calls=7, cache=A_MINUTE) as (handler, _, call, tasks):
        await line_up(tasks, call("a"))
        results = await call.map(["a", "b", "b", "c"])
        assert [result[1] for result in results] == ["a", "b", "b", "c"]
        assert await call.map(["c", "b"]) == [("result", "c"), ("result", "b")]
        assert await call.map([]) == []
    assert sorted(handler.items) == ["a", "b", "c"]


async def test_a_map_that_leaves_drops_what_nobody_else_waits_for():
    async with sharing(calls=3) as (_, _, call, tasks):
        other = await line_up(tasks, call("a"))
        with anyio.move_on_after(0.5):
            await call.map(["a", "b"])
    assert other[0].outcome == ("result", "a")


async def test_a_map_whose_key_function_breaks_drops_its_calls():
    def key(item: str) -> str:
        if item == "c":
            raise Panic
        return item

    async with sharing(dedupe=key, calls=2) as (handler, _, call, _):
        with pytest.raises(Panic):
            await call.map("abc")
    assert handler.items == []


async def test_a_map_that_does_not_fit_makes_no_call():
    async with sharing(max_batch_size=1, max_queued_requests=1) as (handler, batcher, call, tasks):
        await launch(tasks, call("x"))
        with pytest.raises(Overloaded):
            await call.map(["a", "b"])
        assert batcher.statistics().queued == 0
    assert handler.items == ["x"]


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
            for what, value, timeout_s in steps:
                if what == "call":
                    made = call.options(timeout_s=timeout_s)(value)
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


# The cache of results: later calls get a result that was made before


TEN_SECONDS = shoal.Cache(max_size=9, ttl_s=10)
OF_TWO = shoal.Cache(max_size=2, ttl_s=99)


async def test_a_result_is_kept_for_its_time():
    async with sharing(calls=5, cache=TEN_SECONDS) as (handler, batcher, call, _):
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


async def test_the_least_recently_used_result_is_dropped():
    async with sharing(cache=OF_TWO) as (handler, _, call, _):
        for item in ("a", "b", "a", "c", "a", "b"):
            await call(item)
    assert handler.items == ["a", "b", "c", "b"]


async def test_a_cache_shares_requests_as_well():
    async with sharing(dedupe=False, cache=OF_TWO) as (handler, _, call, tasks):
        await line_up(tasks, call("a"), call("a"))
    assert handler.items == ["a"]


async def test_a_hit_is_a_checkpoint():
    async with opened(Second().results, cache=OF_TWO) as call:
        await call("a")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call("a")
        assert scope.cancelled_caught


async def test_what_is_made_after_the_cache_was_emptied_is_made_anew():
    async with sharing(cache=OF_TWO) as (handler, batcher, call, tasks):
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
    async with sharing(calls=5, dedupe=False, cache=None) as (handler, batcher, call, tasks):
        callers = await line_up(tasks, call("a"))
        batcher.configure(dedupe=True)
        callers += await line_up(tasks, call("a"), call("a"))
        batcher.configure(dedupe=False)
        callers += await line_up(tasks, call("a"))
        batcher.configure(cache=shoal.Cache(max_size=2, ttl_s=9))
        callers += await line_up(tasks, call("a"))
    assert [one.outcome for one in callers] == [("result", "a")] * 5
    assert len(handler.items) == 4


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
