"""The cache of results: later calls get a result that was made before."""

import anyio
import pytest

import shoal
from batching.scenes import PENDING, line_up
from batching.sharing_scenes import Second, opened, sharing

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
    batcher = opened(Second().results, cache=OF_TWO)
    async with batcher as call:
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
