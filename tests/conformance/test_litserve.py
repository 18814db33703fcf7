"""What the tests of LitServe and BentoML assert of batching (group LB)."""

import anyio
import pytest

import shoal
from batching.scenes import Recorder, line_up, outcomes, outcomes_in_order
from shoal.testing.asgi import Call, calling


async def test_lb1_one_result_for_two_items_fails_both():
    async def handler(items: list[int]) -> list[int]:
        return items[:1]

    async with shoal.Batcher(handler, max_batch_size=2, batch_wait_timeout_s=None) as call:
        errors = await outcomes(call(1), call(2))
    assert [type(error) for error in errors] == [shoal.errors.WrongBatchSize] * 2
    assert [(error.expected, error.got) for error in errors] == [(2, 1)] * 2


async def test_lb1_over_http_both_are_answered_500_without_what_went_wrong_inside():
    app = shoal.App()

    @app.endpoint("/x", max_batch_size=2, batch_wait_timeout_s=None)
    async def handler(items: list[int]) -> list[int]:
        return items[:1]

    calls = [Call(app, "/x", item=item) for item in (1, 2)]
    async with app.lifespan(), calling(*calls):
        for call in calls:
            await call.returned.wait()
    assert [call.answer.status for call in calls] == [500] * 2
    assert [call.answer.json()["type"] for call in calls] == ["urn:shoal:problem:internal"] * 2


async def test_lb2_a_window_longer_than_a_call_may_take_ends_in_time_for_the_call():
    handler = Recorder()
    batcher = shoal.Batcher(handler, batch_wait_timeout_s=30, request_timeout_s=10)
    async with batcher as call, anyio.create_task_group() as tasks:
        started = anyio.current_time()
        callers = await line_up(tasks, call(1), call(2))
    assert [caller.outcome for caller in callers] == [1, 2]
    assert [at - started for at in handler.started_at] == [pytest.approx(5)]
    assert batcher.statistics().batches[shoal.DispatchReason.DEADLINE] == 1


@pytest.mark.parametrize("item", [None, (), shoal.END, shoal.SKIP, StopIteration, ...])
async def test_lb3_no_item_stops_the_loop(item):
    batcher = shoal.Batcher(Recorder(), max_batch_size=3, batch_wait_timeout_s=None)
    async with batcher as call:
        for _ in range(2):
            assert await outcomes_in_order(call(1), call(item), call(2)) == [1, item, 2]
        assert batcher.is_alive


async def test_lb3_closing_stops_the_loop_once_what_is_in_line_has_run():
    handler = Recorder()
    batcher = shoal.Batcher(handler, batch_wait_timeout_s=None)
    async with batcher as call, anyio.create_task_group() as tasks:
        (caller,) = await line_up(tasks, call(1))
        await batcher.aclose()
        assert not batcher.is_alive
        with pytest.raises(shoal.errors.BatcherClosed):
            await call(2)
    assert caller.outcome == 1
    assert handler.batches == [[1]]
