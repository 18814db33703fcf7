"""Streams over HTTP that run no handler, or whose copies have no answer to compare."""

import anyio
import pytest

from shoal.serving.shadow import PrimaryAnswer
from shoal.testing.asgi import ask


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_head_of_a_stream_runs_no_handler_and_has_the_headers_of_get(accept, app):
    ran = []

    async def steps(items: list[int]):
        ran.append(items)
        yield items

    app.endpoint("/m", name="m", methods=["GET", "POST"])(steps)
    headers = [("accept", accept)]
    async with app.lifespan():
        head = await ask(app, "/m", 1, method="HEAD", headers=headers)
        assert (head.status, head.body, ran) == (200, b"", [])
        whole = await ask(app, "/m", 1, headers=headers)
    del head.headers["x-request-id"], whole.headers["x-request-id"]
    assert head.headers == whole.headers


async def test_a_copy_of_a_stream_waits_for_no_answer(monkeypatch, app):
    made, init = [], PrimaryAnswer.__init__
    monkeypatch.setattr(PrimaryAnswer, "__init__", lambda one: made.append(one) or init(one))

    async def steps(items: list[int]):
        yield items

    app.backend("one", steps)
    app.backend("two", steps)
    app.route("m", backend="one", path="/m")
    async with app.lifespan():
        await app.controller.shadow_traffic("m", "two", 1.0, compare=lambda *_: True)
        assert (await ask(app, "/m", 1)).status == 200
        (answer,) = made
        with anyio.fail_after(1):
            await answer.ended.wait()
