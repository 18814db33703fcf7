"""The metrics of endpoints are there as long as the endpoints."""

import re

import pytest

import shoal
from shoal.testing.asgi import ask

pytestmark = pytest.mark.real_time


async def endpoints_in(app):
    text = (await ask(app, "/-/metrics", method="GET")).body.decode()
    series = r'^(shoal_\w+)_(?:count|total)\{.*endpoint="([^"]+)"'
    return set(re.findall(series, text, re.MULTILINE))


async def test_what_was_counted_of_a_deleted_endpoint_is_forgotten():
    app = shoal.App()

    @app.post("/value")
    def value(item: int) -> int:
        return item

    @app.post("/steps")
    async def steps(item: int):
        yield item

    async with app.lifespan():
        for path in ("/value", "/steps", "/none"):
            await ask(app, path, 1)
        before = await endpoints_in(app)
        of_steps = {pair for pair in before if pair[1] == "steps"}
        assert ("shoal_request_seconds", "steps") in of_steps
        assert len(of_steps) > 1  # of its streams, too
        assert {name for _, name in before} == {"-", "value", "steps"}
        await app.controller.delete_endpoint("steps")
        assert await endpoints_in(app) == before - of_steps
        assert (await ask(app, "/steps", 1)).status == 404
        assert await endpoints_in(app) == before - of_steps
