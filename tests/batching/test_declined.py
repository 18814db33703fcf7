"""What code declines by an ``HTTPException`` below 500 is an outcome of its own, and no failure."""

import logging
from functools import partial

import anyio
import pytest
from starlette.exceptions import HTTPException

import shoal
from shoal.core.events import BatchObserver
from shoal.testing import settle

DECLINED = {
    "no": HTTPException(404),
    "large": shoal.errors.ItemTooLarge("x"),
    "moved": HTTPException(308),
}
FAILED = {"bad": HTTPException(503), "odd": HTTPException(200), "bug": KeyError("x")}
ITEMS = [*DECLINED, *FAILED, "fine"]


def outcome_of(item):
    return (DECLINED | FAILED).get(item, item)


async def plain(items: list[str]) -> list[str | Exception]:
    return [outcome_of(item) for item in items]


async def raising(items: list[str]) -> list[str]:
    if isinstance(error := outcome_of(items[0]), Exception):
        raise error
    return items


async def streamed(items: list[str]):
    yield [outcome_of(item) for item in items]


async def opened(batch: shoal.OpenBatch[str, str]) -> None:
    async for request in batch:
        outcome = outcome_of(request.item)
        if isinstance(outcome, Exception):
            request.fail(outcome)
        else:
            request.finish(outcome)


class Records(BatchObserver):
    def __init__(self):
        self.records = []

    def batch_ended(self, record, requests):
        self.records.append(record)


async def read(call, item):
    result = call(item)
    if not hasattr(result, "__aiter__"):
        return await result
    async with result as stream:
        return [one async for one in stream]


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (plain, {"max_batch_size": 1}),
        (plain, {"max_batch_size": 7, "batch_wait_timeout_s": 1}),
        (raising, {"max_batch_size": 1}),
        (raising, {"max_batch_size": 1, "isolate_errors": True}),
        (streamed, {"max_batch_size": 7, "batch_wait_timeout_s": 1}),
        (opened, {"fill": "open", "max_batch_size": 1}),
        (opened, {"fill": "continuous", "max_batch_size": 7}),
    ],
)
async def test_what_the_handler_declines_is_counted_apart(handler, options):
    batcher = shoal.Batcher(handler, **options)
    seen = Records()
    batcher.observers.add(seen)
    errors = {}

    async def ask(item):
        try:
            await read(call, item)
        except Exception as error:
            errors[item] = type(error)

    async with batcher as call, anyio.create_task_group() as tasks:
        for item in ITEMS:
            tasks.start_soon(ask, item)
    found = batcher.statistics()
    assert (found.finished, found.declined, found.failed, found.cancelled) == (1, 3, 3, 0)
    assert errors == {item: type(error) for item, error in (DECLINED | FAILED).items()}
    for name in ("finished", "declined", "failed", "cancelled"):
        assert sum(getattr(one, name) for one in seen.records) == getattr(found, name)
    for record in seen.records:  # an error is what failed a request
        assert (record.error is None) == (not record.failed)


async def test_all_calls_that_share_a_declined_one_are_declined():
    go = anyio.Event()

    async def held(items: list[str]) -> list[str]:
        await go.wait()
        raise HTTPException(404)

    batcher = shoal.Batcher(held, dedupe=True)
    caught = []

    async def ask():
        try:
            await call("a")
        except HTTPException as error:
            caught.append(error)

    async with batcher as call, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
        await settle()
        go.set()
    found = batcher.statistics()
    assert (found.declined, found.failed, found.shared) == (3, 0, 2)
    assert len(set(map(id, caught))) == 3


async def test_what_is_declined_while_a_batcher_closes_is_counted_apart(caplog):
    caplog.set_level(logging.INFO, "shoal")
    began, go = anyio.Event(), anyio.Event()

    async def handler(items: list[str]) -> list[str | Exception]:
        began.set()
        await go.wait()
        return await plain(items)

    batcher = shoal.Batcher(handler, max_batch_size=9)
    async with batcher as call, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(call.map, ["no", "bad", "fine"], return_exceptions=True))
        await began.wait()
        tasks.start_soon(batcher.aclose)
        await settle()
        go.set()
    assert await batcher.aclose() == shoal.statistics.ClosingCounts(1, 1, 0, declined=1)
    assert "(1 failed, 0 cancelled or out of time, 1 declined)" in caplog.text
