"""Clients that leave on servers which do not tell: one task notices them, and sleeps if it can."""

import anyio
import pytest

import shoal
from shoal.core.histogram import LEFT
from shoal.http.requests.departures import UNNOTICED_S
from shoal.testing import settle
from shoal.testing.asgi import Call, calling


def holding_app(go, **more):
    app = shoal.App(**more)

    async def held(items: list[int]) -> list[int]:
        await go.wait()
        return items

    app.endpoint("/held", name="held", max_batch_size=8)(held)
    return app


@pytest.mark.parametrize("late", [False, True])
async def test_a_client_that_leaves_is_noticed_soon(late):
    app = holding_app(anyio.Event())
    call = Call(app, "/held", item=1)
    async with app.lifespan(), calling(call):
        await anyio.sleep(10 if late else 0)
        call.leave()
        left_at = anyio.current_time()
        await call.returned.wait()
        assert anyio.current_time() - left_at <= (0 if late else UNNOTICED_S + 1e-6)
    assert call.status == LEFT


async def test_a_short_call_never_waits_in_receive():
    go = anyio.Event()
    app = holding_app(go)
    call = Call(app, "/held", item=1)
    async with app.lifespan(), calling(call):
        await anyio.sleep(UNNOTICED_S / 2 - 0.01)
        assert not call.is_listening
        go.set()
        await call.returned.wait()
        assert call.answer.json() == 1


async def test_a_receive_that_raises_ends_its_call_alone(caplog):
    go = anyio.Event()

    class Broken:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            messages = iter(range(9))

            async def broken():
                if next(messages):
                    raise LookupError("no such message")
                return await receive()

            await self.app(scope, broken if scope["query_string"] else receive, send)

    app = holding_app(go, middleware=[Broken])
    bad, good = Call(app, "/held?x", item=1), Call(app, "/held", item=2)
    async with app.lifespan(), calling(bad, good):
        await bad.returned.wait()
        assert "can't be watched" in caplog.text
        await settle()
        go.set()
        await good.returned.wait()
        again = Call(app, "/held", item=3)
        await again.run()
        assert (good.answer.json(), again.answer.json()) == (2, 3)
    assert bad.status == LEFT
    caplog.clear()


async def test_nothing_wakes_while_no_call_waits(monkeypatch):
    go = anyio.Event()
    app = holding_app(go)
    looks = []
    sleep = anyio.sleep

    async def counted(delay_s):
        looks.append(delay_s)
        await sleep(delay_s)

    async with app.lifespan():
        monkeypatch.setattr("shoal.http.requests.departures.anyio.sleep", counted)
        await sleep(10)
        assert looks == []
        long = Call(app, "/held", item=1)
        async with calling(long):
            await sleep(10)  # a call that is listened to costs no looks either
            assert 0 < len(looks) <= 3
            go.set()
            await long.returned.wait()
