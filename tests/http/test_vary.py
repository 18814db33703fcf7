"""``Vary: accept`` is on each answer whose form was chosen by ``Accept``, and on no other."""

import numpy as np
import pytest

import shoal
from event_loops import one_loop_for_the_file  # noqa: F401
from shoal.testing.asgi import ask

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
async def app(anyio_backend):
    app = shoal.App()

    @app.get("/value")
    def value() -> dict[str, int]:
        return {"a": 1}

    @app.get("/array")
    def array():
        return np.arange(3)

    @app.get("/bytes")
    def some_bytes() -> bytes:
        return b"abc"

    @app.get("/steps")
    async def steps():
        yield 1
        yield 2

    async with app.lifespan():
        yield app


@pytest.mark.parametrize(
    ("path", "accept", "media_type", "varies"),
    [
        ("/value", None, "application/json", False),
        ("/value", "*/*", "application/json", False),
        ("/value", "application/json", "application/json", False),
        ("/value", "application/json, */*;q=0.1", "application/json", True),
        ("/value", "application/x-npy", "application/json", True),
        ("/value", "application/msgpack", "application/msgpack", True),
        ("/array", None, "application/json", False),
        ("/array", "application/x-npy", "application/x-npy", True),
        ("/array", "text/html", "application/json", True),
        ("/bytes", "application/msgpack", "application/octet-stream", False),
        ("/steps", None, "text/event-stream; charset=utf-8", True),
        ("/steps", "application/x-ndjson", "application/x-ndjson; charset=utf-8", True),
        ("/steps", "application/json", "application/json", True),
        ("/steps", "text/html", "application/problem+json", True),
    ],
)
async def test_an_answer_varies_if_its_form_was_chosen(app, path, accept, media_type, varies):
    headers = [] if accept is None else [("accept", accept)]
    answer = await ask(app, path, method="GET", headers=headers)
    assert answer.headers["content-type"] == media_type
    assert answer.headers.get("vary") == ("accept" if varies else None)
