"""What is kept of calls that an App makes for the server itself: nothing."""

from __future__ import annotations

import gc
import logging
import weakref

import anyio
import anyio.lowlevel
import pytest
from held_app import served
from starlette.responses import PlainTextResponse

import shoal
from shoal.testing import settle

pytestmark = pytest.mark.anyio


# What is kept.


async def test_a_backend_that_is_deleted_is_not_kept_by_its_last_call(held):
    held.go.set()
    app = shoal.App()
    app.endpoint("/model", name="model")(same)
    app.backend("next", held)
    async with served(app) as server:
        client = server.connect()
        client.ask("/model", 1)
        await settle()
        assert client.statuses == [200]
        batcher = weakref.ref(app.controller.backends["model"].method_batchers["__call__"].batcher)
        await app.controller.set_traffic("model", {"next": 1})
        await app.controller.delete_backend("model")
        await settle()
        gc.collect()
        assert batcher() is None


class Item:
    """An item, or a result, that a test can see being dropped."""


async def test_neither_an_item_nor_a_result_is_kept_after_the_answer():
    kept = []

    def reference(value):
        kept.append(weakref.ref(value))
        return value

    app = shoal.App()

    class Result(Item):
        def tolist(self):
            return 1

    @app.endpoint("/items", name="items")
    async def items(given: list[int]) -> list[object]:
        return [reference(Result()) for _ in given]

    gc.disable()
    try:
        async with served(app) as server:
            client = server.connect()
            for _ in range(3):
                client.ask("/items", 1)
                await settle()
            assert client.statuses == [200] * 3
            # The batcher's slot has the last batch until the next.
            assert [one() for one in kept][:-1] == [None, None]
    finally:
        gc.enable()


async def fail(items):
    raise ValueError("not this time")


async def unwritable(items):
    return [object() for _ in items]


async def response(items):
    return [PlainTextResponse("text") for _ in items]


async def same(items):
    return items


FLOWS = {
    "answer": (same, 1, None),
    "failure": (fail, 1, None),
    "unwritable": (unwritable, 1, None),
    "response": (response, 1, None),
    "no JSON": (same, ..., None),
    "late": (None, 1, None),
    "left at once": (None, 1, 0),
    "left": (None, 1, 1),
}
OF_REQUESTS = {"Call", "EndpointCall", "Exchange", "HttpMetadata", "PendingCall", "Request"}


@pytest.mark.parametrize("flow", FLOWS)
async def test_a_request_leaves_nothing_to_the_garbage_collector(held, flow, monkeypatch):
    # pytest keeps the errors that are logged.
    for name in ("shoal.server", "shoal.http"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    handler, item, leaves_after_s = FLOWS[flow]
    app = shoal.App()
    app.endpoint("/it", name="it", request_timeout_s=5)(handler or held)
    async with served(app, keep_alive_timeout_s=600) as server:
        kept = server.connect()

        async def once():
            client = kept if leaves_after_s is None else server.connect()
            client.ask("/it", item, method="POST")
            if leaves_after_s is None:
                await anyio.sleep(6)
            else:
                await anyio.sleep(leaves_after_s)
                client.leave()
            await settle()
            assert server.shared.running == 0

        await once()
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await once()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            found = [type(one).__qualname__ for one in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert len(kept.answers) == (6 if leaves_after_s is None else 0)
    if leaves_after_s is not None:  # a connection that has ended does leave something
        found = [name for name in found if name in OF_REQUESTS]
    assert found == []
