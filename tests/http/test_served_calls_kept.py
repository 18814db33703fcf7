"""What is kept of calls that an App makes for the server itself: nothing."""

import gc
import logging
import weakref

import anyio
import anyio.lowlevel
import pytest
from held_app import served
from starlette.responses import PlainTextResponse, Response

import shoal
from shoal.testing import settle

# What is kept.


async def test_a_backend_that_is_deleted_is_not_kept_by_its_last_call(held):
    held.go.set()
    app = shoal.App()
    app.endpoint("/model", name="model")(same)
    app.backend("next", held)
    async with served(app) as server:
        client = await server.ask("/model", 1)
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


async def fail(items: list[int]) -> list[int]:
    raise ValueError("not this time")


async def unwritable(items: list[int]) -> list[object]:
    return [object() for _ in items]


async def response(items: list[int]) -> list[Response]:
    return [PlainTextResponse("text") for _ in items]


async def same(items: list[int]) -> list[int]:
    return items


# The handler, the item, when the client leaves, and the status of the answer.
FLOWS = {
    "answer": (same, 1, None, 200),
    "failure": (fail, 1, None, 500),
    "unwritable": (unwritable, 1, None, 500),
    "response": (response, 1, None, 200),
    "no JSON": (same, ..., None, 400),
    "late": (None, 1, None, 504),
    "left at once": (None, 1, 0, None),
    "left": (None, 1, 1, None),
    "cached": (same, 1, None, 200),
    "cached response": (response, 1, None, 200),
    "cached unwritable": (unwritable, 1, None, 500),
    "shared": (same, 1, None, 200),
    "shared failure": (fail, 1, None, 500),
    "shared left at once": (None, 1, 0, None),
    "shared left": (None, 1, 1, None),
}
SHARING = {"cached": {"cache": shoal.Cache(max_size=9, ttl_s=600)}, "shared": {"dedupe": True}}
OF_REQUESTS = {"Call", "EndpointCall", "Exchange", "HttpMetadata", "Request"}


@pytest.mark.parametrize("flow", FLOWS)
async def test_a_request_leaves_nothing_to_the_garbage_collector(held, flow, monkeypatch):
    # pytest keeps the errors that are logged.
    for name in ("shoal.server", "shoal.http"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    handler, item, leaves_after_s, status = FLOWS[flow]
    app = shoal.App()
    sharing = SHARING.get(flow.partition(" ")[0], {})
    app.endpoint("/it", name="it", request_timeout_s=5, **sharing)(handler or held)
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
    assert kept.statuses == ([] if status is None else [status] * 6)
    if leaves_after_s is not None:  # a connection that has ended does leave something
        found = [name for name in found if name in OF_REQUESTS]
    assert found == []
