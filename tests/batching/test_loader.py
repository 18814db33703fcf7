"""A loader remembers the results of batched calls for the time of one request."""

import itertools
import weakref
from typing import Any

import anyio
import pytest

import shoal
from batching.callers import LEFT, launch, outcomes
from batching.scenes import Recorder, opening
from conformance.replica_scenes import served
from shoal.errors import BatcherClosed


def failing_for(*bad: int) -> Recorder:
    return Recorder(lambda item: KeyError(item) if item in bad else f"row {item}")


async def test_each_item_is_loaded_once_and_remembered(recorder):
    async with shoal.Batcher(recorder, batch_wait_timeout_s=1) as call:
        loader = shoal.Loader(call)
        assert await outcomes(loader.load(1), loader.load(2), loader.load(1)) == [1, 2, 1]
        assert await loader.load(2) == 2
        assert await loader.load_many([1, 3, 3, 2]) == [1, 3, 3, 2]
    assert [sorted(batch) for batch in recorder.batches] == [[1, 2], [3]]


async def test_loaders_share_batches_but_no_results(recorder):
    async with shoal.Batcher(recorder, max_batch_size=64) as call:
        loaders = [shoal.Loader(call) for _ in range(20)]
        await outcomes(*(one.load(n % 5) for one in loaders for n in range(10)))
    assert [len(batch) for batch in recorder.batches] == [64, 36]
    assert sorted(itertools.chain(*recorder.batches)) == sorted([*range(5)] * 20)


async def test_an_error_fails_its_item_alone_and_is_not_remembered():
    handler = failing_for(2)
    async with shoal.Batcher(handler, batch_wait_timeout_s=1) as call:
        loader = shoal.Loader(call)
        one, error, three = await loader.load_many([1, 2, 3])
        assert (one, three) == ("row 1", "row 3")
        assert isinstance(error, KeyError)
        first, second = await outcomes(loader.load(2), loader.load(2))
        assert isinstance(first, KeyError)
        assert isinstance(second, KeyError)
        assert first is not second
        handler.answer = str
        assert await loader.load(2) == "2"
    assert handler.batches == [[1, 2, 3], [2], [2]]


async def test_a_caller_that_leaves_takes_nothing_from_the_others(held):
    async with opening(held, max_batch_size=1) as (_, call, tasks):
        loader = shoal.Loader(call)
        leaving, staying, other = await launch(
            tasks, loader.load(1), loader.load(1), loader.load_many([1, 2])
        )
        leaving.leave()
        held.gate.set()
    assert leaving.outcome is LEFT
    assert staying.outcome == 1
    assert other.outcome == [1, 2]


async def test_a_handler_does_not_wait_for_its_own_batch():
    loaders: list[shoal.Loader[int, int]] = []

    async def sum_to(items: list[int]) -> list[int]:
        return [item and item + await loaders[0].load(item - 1) for item in items]

    async with shoal.Batcher(sum_to, max_concurrent_batches=3) as call:
        loaders.append(shoal.Loader(call))
        assert await loaders[0].load_many([1, 0]) == [1, 0]


async def test_one_that_only_waits_may_leave(held):
    async with opening(held) as (_, call, tasks):
        loader = shoal.Loader(call)
        loading, waiting = await launch(tasks, loader.load(1), loader.load(1))
        waiting.leave()
        held.gate.set()
    assert (loading.outcome, waiting.outcome) == (1, LEFT)
    assert held.batches == [[1]]


async def test_results_can_be_given_and_forgotten(recorder):
    async with shoal.Batcher(recorder) as call:
        loader = shoal.Loader(call)
        loader.prime(1, "given")
        loader.prime(1, "too late")
        assert await loader.load_many([1, 2]) == ["given", 2]
        loader.clear(1)
        assert await loader.load_many([1, 2]) == [1, 2]
        loader.clear(7)  # unknown
        loader.clear_all()
        assert await loader.load(2) == 2
    assert recorder.batches == [[2], [1], [2]]


async def test_what_is_forgotten_while_it_is_loaded_is_loaded_again(held):
    async with opening(held) as (_, call, tasks):
        loader = shoal.Loader(call)
        before = await launch(tasks, loader.load(1), loader.load(1))
        loader.clear(1)
        held.gate.set()
        while before[1].outcome != 1:
            await anyio.lowlevel.checkpoint()
        assert await loader.load(1) == 1
    assert [one.outcome for one in before] == [1, 1]
    assert held.batches == [[1], [1]]


async def test_a_key_says_which_items_are_equal(recorder):
    async with shoal.Batcher(recorder) as call:
        by_id = shoal.Loader(call, key=lambda row: row["id"])
        row = {"id": 1, "name": "a"}
        assert await by_id.load_many([row, {"id": 1, "name": "b"}]) == [row, row]
        by_value = shoal.Loader(call)
        assert await by_value.load_many([1, True, 1.0]) == [1, True, 1.0]
        with pytest.raises(TypeError, match=r"the key of {'id': 1.* is not hashable; pass"):
            await by_value.load_many([5, row])
    assert recorder.batches == [[row], [1, True, 1.0]]


async def test_a_call_that_cannot_be_made_fails_each_item():
    async with shoal.Batcher(Recorder()) as call:
        loader = shoal.Loader(call)
        assert await loader.load(1) == 1
    errors = await loader.load_many([1, 2, 3])
    assert errors[0] == 1
    assert [type(error) for error in errors[1:]] == [BatcherClosed, BatcherClosed]
    with pytest.raises(BatcherClosed):
        await loader.load(4)


async def test_options_of_the_call_are_those_of_the_loads():
    seen = []

    async def handler(items: list[int]) -> list[int]:
        seen.extend(request.metadata for request in shoal.current_batch().requests)
        return items

    async with shoal.Batcher(handler) as call:
        await shoal.Loader(call.options(metadata={"user": "ada"})).load(1)
    assert seen == [{"user": "ada"}]


@pytest.mark.real_time
async def test_a_handle_can_load():
    async def lengths(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    async with served(shoal.accept_batch(lengths)) as handle:
        loader: shoal.Loader[str, int] = shoal.Loader(handle)
        assert await loader.load_many(["a", "abc", "a"]) == [1, 3, 1]
        assert await loader.load("abc") == 3


async def test_nothing_is_left_of_a_loader_that_is_dropped():
    class Row:
        pass

    async with shoal.Batcher(Recorder(lambda item: item())) as call:
        loader = shoal.Loader(call)
        row = weakref.ref(await loader.load(Row))
        assert row() is not None
        del loader
        assert row() is None


async def test_nothing_is_left_of_an_error_that_was_handled():
    class Missing(Exception):
        pass

    def answer(_: int) -> Any:
        return Missing()

    async with shoal.Batcher(Recorder(answer)) as call:
        loader = shoal.Loader(call)
        try:
            await loader.load(1)
        except Missing as error:
            left = weakref.ref(error)
        assert left() is None


async def test_a_load_is_a_checkpoint():
    async with shoal.Batcher(Recorder()) as call:
        loader = shoal.Loader(call)
        await loader.load(1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await loader.load(1)
        assert scope.cancelled_caught


def test_what_is_not_batched_is_refused():
    async def plain(item: int) -> int:
        return item

    @shoal.batch
    async def streamed(items: list[int]) -> Any:
        yield items

    unusable: Any
    for unusable in (plain, streamed, None):
        with pytest.raises(TypeError, match="a Loader takes a batched function of one item, not"):
            shoal.Loader(unusable)
    wrong: Any = "id"
    with pytest.raises(TypeError, match="key must be a function of an item, not 'id'"):
        shoal.Loader(shoal.batch(lambda items: items), key=wrong)
