"""``X-Request-Timeout``: how long a client waits, which can only shorten the server's limit."""

import anyio
import pytest
from held_app import counted, kind_of, served

import shoal
from shoal.testing.asgi import ask

SERVER_S = 20.0


@pytest.fixture
def limited(held):
    """An application whose own limit is 20 s."""
    app = shoal.App(answer_timeout_s=300)
    app.endpoint("/held", name="held", max_batch_size=1, request_timeout_s=SERVER_S)(held)
    return app


async def timed(app, given, path="/held"):
    began = anyio.current_time()
    headers = [] if given is None else [("X-Request-Timeout", given)]
    answer = await ask(app, path, item=1, headers=headers)
    return answer, anyio.current_time() - began


@pytest.mark.parametrize(
    ("given", "took_s"),
    [
        ("2.5", 2.5),
        ("0.001", 0.001),
        ("0", 0),
        ("19.999999", 19.999999),
        ("20.5", SERVER_S),
        ("999999999999999.5", SERVER_S),
        (None, SERVER_S),
    ],
)
async def test_the_shorter_of_both_limits_counts(limited, held, given, took_s):
    async with limited.lifespan():
        answer, seconds = await timed(limited, given)
    assert answer.status == 504
    assert answer.json()["type"] == "urn:shoal:problem:deadline-exceeded"
    assert seconds == pytest.approx(took_s, abs=1e-6)


async def test_a_stream_has_no_limit_but_that(held):
    app = shoal.App(heartbeat_s=1000)

    @app.endpoint("/slow", max_batch_size=1)
    async def slow(numbers: list[int]):
        await anyio.sleep(100)
        yield [number + 1 for number in numbers]

    async with app.lifespan():
        answer, seconds = await timed(app, None, "/slow")
        assert (answer.status, seconds) == (200, pytest.approx(100))
        answer, seconds = await timed(app, "7", "/slow")
        assert (answer.status, seconds) == (504, pytest.approx(7))


async def test_it_limits_the_wait_for_traffic_as_well():
    app = shoal.App()
    async with app.lifespan():
        await app.controller.create_endpoint("idle", backend=None, route="/idle")
        answer, seconds = await timed(app, "3", "/idle")
        assert (answer.status, seconds) == (504, pytest.approx(3))


async def test_what_the_wait_for_traffic_took_is_not_given_twice(held):
    app = shoal.App()
    app.endpoint("/held", name="held", max_batch_size=1)(held)
    async with app.lifespan():
        controller = app.controller
        [backend] = controller.backends
        await controller.create_endpoint("late", backend=None, route="/late")
        async with anyio.create_task_group() as tasks:

            async def send_traffic():
                await anyio.sleep(2)
                await controller.set_traffic("late", {backend: 1.0})

            tasks.start_soon(send_traffic)
            answer, seconds = await timed(app, "5", "/late")
        assert (answer.status, seconds) == (504, pytest.approx(5))


@pytest.mark.parametrize(
    "given",
    [
        *("", "-1", "+1", "-0", "1e3", "1.", ".5", "1.5.2", "1,5", "2 s", "2s", "inf", "nan"),
        *("0x10", "1_000", "\u00b2", "9" * 16, "1, 2", "1." + "0" * 16),
    ],
)
@pytest.mark.one_loop
async def test_what_is_no_number_of_seconds_is_refused(limited, held, given):
    async with limited.lifespan():
        answer, seconds = await timed(limited, given)
        assert (answer.status, seconds) == (400, 0)
        assert answer.json()["type"] == "urn:shoal:problem:invalid-timeout"
        assert "X-Request-Timeout" in answer.json()["detail"]
        assert counted(limited) == (1, 0)  # no failure of the endpoint
    assert held.batches == []


async def test_a_call_over_a_server_is_limited_too(app, held):
    """With nothing around the application, no task waits for the call."""
    async with served(app) as server:
        client = server.connect()
        client.ask("/held", 3, headers=["X-Request-Timeout: 1.5"])
        await anyio.sleep(1.4)
        assert client.answers == []
        await anyio.sleep(0.2)
        [answer] = client.answers
        assert answer[0] == 504
        assert kind_of(answer) == "deadline-exceeded"
