"""Endpoints whose queue is full, over WebSocket: what is too much is refused, and nothing else."""

from __future__ import annotations

import anyio
import pytest

import shoal
from shoal.testing import settle
from socket_in_memory import opened

pytestmark = pytest.mark.anyio


class Held:
    """Code that holds its items until it is let go.

    Attributes:
        items: The items that it was given.
    """

    def __init__(self):
        self.items: list[int] = []
        self.go = anyio.Event()

    async def result(self, items: list[int]) -> list[int]:
        self.items += items
        await self.go.wait()
        return [2 * item for item in items]

    async def steps(self, items: list[int]):
        self.items += items
        yield items
        await self.go.wait()
        yield [2 * item for item in items]


def full_app(handler, **settings):
    """An application in which one request runs, and one waits."""
    app = shoal.App(**settings)
    app.endpoint("/x", name="x", max_batch_size=1, max_concurrent_batches=1, max_queued_requests=1)(
        handler
    )
    return app


async def refused(socket):
    """The id and the status of the next message, which is an error and comes at once."""
    began = anyio.current_time()
    message = await socket.read()
    assert anyio.current_time() == began
    assert set(message) == {"id", "error"}
    error = message["error"]
    assert error["retry_after_s"] == 1
    assert error["type"] == "urn:shoal:problem:overloaded"
    assert error["title"] == "The endpoint is overloaded"
    assert error["instance"].endswith(f":{message['id']}")
    return message["id"], error["status"]


@pytest.mark.parametrize(("settings", "status"), [({}, 503), ({"overload_status": 429}, 429)])
async def test_a_request_to_a_full_queue_is_refused_at_once_and_alone(settings, status):
    held = Held()
    app = full_app(held.result, **settings)
    async with app.lifespan(), opened(app, "/x") as socket, opened(app, "/x") as other:
        for number in (1, 2):
            socket.say(id=number, item=number)
            await settle()
        for number in (3, 4):
            socket.say(id=number, item=number)
            assert await refused(socket) == (number, status)
        other.say(id=1, item=5)
        assert await refused(other) == (1, status)
        await settle()
        assert not socket.sent
        held.go.set()
        assert [await socket.read() for _ in "12"] == [
            {"id": 1, "result": 2},
            {"id": 2, "result": 4},
        ]
        socket.say(id=3, item=3)
        assert await socket.read() == {"id": 3, "result": 6}
        other.say(id=1, item=5)
        assert await other.read() == {"id": 1, "result": 10}
    assert held.items == [1, 2, 3, 5]


async def test_a_stream_goes_on_while_others_are_refused():
    held = Held()
    app = full_app(held.steps)
    async with app.lifespan(), opened(app, "/x") as socket:
        for number in (1, 2):
            socket.say(id=number, item=number)
            await settle()
        assert await socket.read() == {"id": 1, "next": 1}
        socket.say(id=3, item=3)
        assert await refused(socket) == (3, 503)
        held.go.set()
        with anyio.fail_after(1):
            got = [await socket.read() for _ in range(5)]
    assert [one for one in got if one["id"] == 1] == [{"id": 1, "next": 2}, {"id": 1, "end": True}]
    assert [one for one in got if one["id"] == 2] == [
        {"id": 2, "next": 2},
        {"id": 2, "next": 4},
        {"id": 2, "end": True},
    ]
    assert held.items == [1, 2]


async def test_of_many_requests_at_once_all_are_answered():
    held = Held()
    app = full_app(held.result)
    async with app.lifespan(), opened(app, "/x") as socket:
        for number in range(50):
            socket.say(id=number, item=number)
        await settle()
        served = 50 - len(socket.sent)
        assert 1 <= served <= 2
        others = {(await refused(socket))[0] for _ in range(50 - served)}
        held.go.set()
        answers = [await socket.read() for _ in range(served)]
        assert answers == [{"id": number, "result": 2 * number} for number in range(served)]
        assert others == set(range(served, 50))
        [endpoint] = (await app.controller.status()).endpoints.values()
        assert endpoint.requests == 50
