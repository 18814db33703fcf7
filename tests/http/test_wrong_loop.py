"""Code for the other event loop is told by its failure, with the option that mends it."""

import asyncio
from functools import partial

import pytest
import trio

import shoal
from shoal.testing.asgi import ask


def asyncio_sleep():
    return asyncio.sleep(0.001)


async def asyncio_event():
    asyncio.get_running_loop()


FOR_THE_OTHER = {
    "trio": [asyncio_sleep, asyncio_event],
    "asyncio": [partial(trio.sleep, 0.001), trio.lowlevel.checkpoint],
}


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("streams", [False, True])
async def test_the_log_names_the_option_once_an_endpoint(
    number, streams, caplog, anyio_backend_name
):
    wait = FOR_THE_OTHER[anyio_backend_name][number]
    app = shoal.App()

    if streams:

        @app.endpoint("/e")
        async def e(items: list[int]):
            await wait()
            yield items
    else:

        @app.endpoint("/e")
        async def e(items: list[int]) -> list[int]:
            await wait()
            return items

    async with app.lifespan():
        for _ in range(3):
            assert (await ask(app, "/e", 1)).status == 500
    [hint] = [one.getMessage() for one in caplog.records if "--event-loop" in one.getMessage()]
    other = {"trio": "asyncio", "asyncio": "trio"}[anyio_backend_name]
    assert hint.startswith("e: ")
    assert f"start it with --event-loop {other}" in hint


async def test_other_failures_have_no_such_hint(caplog):
    app = shoal.App()

    @app.endpoint("/e")
    async def e(items: list[int]) -> list[int]:
        raise RuntimeError("the model has no running fans")

    async with app.lifespan():
        assert (await ask(app, "/e", 1)).status == 500
    assert not [one for one in caplog.records if "--event-loop" in one.getMessage()]
