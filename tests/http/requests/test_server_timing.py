"""``Server-Timing``: how long a request waited and ran, for clients that may know it."""

import re

import anyio
from held_app import slow_app

import shoal
from shoal.testing.asgi import Call, ask, calling

TIMING = re.compile(r"(\w+);dur=([\d.]+)")


def timing_of(header):
    return {name: float(ms) for name, ms in TIMING.findall(header)}


async def test_the_times_are_those_of_the_request():
    app = slow_app("always")
    early, late = (Call(app, "/slow", item=number) for number in (1, 2))
    async with app.lifespan(), calling(early) as tasks:
        await anyio.sleep(2)  # the first has waited, and runs
        tasks.start_soon(late.run)
        await late.returned.wait()
    found = [timing_of(one.answer.headers["server-timing"]) for one in (early, late)]
    assert found == [
        {"queue": 0, "wait": 1000, "run": 3000},
        {"queue": 2000, "wait": 0, "run": 3000},
    ]


async def test_a_failed_request_says_them_and_one_that_never_ran_does_not():
    app = slow_app("always")
    async with app.lifespan():
        answer = await ask(app, "/slow", "x")
        assert answer.status == 422
        assert "server-timing" not in answer.headers
        answer = await ask(app, "/slow", 0)
    assert answer.status == 500
    assert timing_of(answer.headers["server-timing"])["run"] == 3000


async def test_a_stream_says_how_long_it_waited():
    app = slow_app("always")
    async with app.lifespan():
        answer = await ask(app, "/steps", 1)
    assert timing_of(answer.headers["server-timing"]) == {"queue": 0, "wait": 0}


async def test_a_client_asks_for_it_where_it_may():
    app = slow_app("asked")
    async with app.lifespan():
        for headers, there in [([], False), ([("X-Server-Timing", "1")], True)]:
            answer = await ask(app, "/slow", 1, headers=headers)
            assert ("server-timing" in answer.headers) is there


async def test_without_the_option_nobody_is_told():
    app = shoal.App()
    app.endpoint("/echo", name="echo")(lambda items: items)
    async with app.lifespan():
        assert app.controller.observers.all == ()
        answer = await ask(app, "/echo", 1, headers=[("X-Server-Timing", "1")])
    assert "server-timing" not in answer.headers


async def test_the_longest_times_of_several_calls_count():
    app = shoal.App(server_timing="always", protocols=["openai"])

    @app.endpoint("/embed", max_batch_size=1)
    async def embed(texts: list[str]) -> list[list[float]]:
        await anyio.sleep(1)
        return [[1.0] for _ in texts]

    async with app.lifespan():
        answer = await ask(app, "/v1/embeddings", {"model": "embed", "input": ["a", "b", "c"]})
    assert answer.status == 200, answer.body
    assert timing_of(answer.headers["server-timing"])["queue"] == 2000
