"""How long requests took: on the loop's clock, so to the microsecond in virtual time."""

import re
import time
from collections import Counter

import anyio
import pytest
from held_app import counted, kind_of, served, slow_app
from server_in_memory import asked

import shoal
from handlers import ask_once
from shoal.testing.asgi import Call, ask, calling


def seconds(app):
    found = Counter()
    for metric in app.metrics.collect():
        for sample in metric.samples:
            if sample.name in ("shoal_request_seconds_count", "shoal_request_seconds_sum"):
                found[sample.labels["endpoint"], sample.name.rpartition("_")[2]] += sample.value
    return {key: value for key, value in found.items() if value}


@pytest.mark.parametrize("timing", ["never", "always"])
async def test_a_request_takes_until_its_answer(timing):
    app = slow_app(timing, batch_wait_timeout_s=0)
    async with served(app) as server:
        for item in (1, 0, 1, 0):  # the first of a kind is counted in another way
            client = server.connect()
            client.ask("/slow", item)
            await anyio.sleep(10)
            assert client.statuses == [200 if item else 500]
        server.connect().ask("/steps", 1)
        await anyio.sleep(10)
    assert seconds(app) == {
        ("slow", "count"): 4,
        ("slow", "sum"): pytest.approx(12),
        ("steps", "count"): 1,
        ("steps", "sum"): pytest.approx(4),
    }


@pytest.mark.parametrize("timing", ["never", "always"])
async def test_a_request_by_asgi_takes_no_longer_than_it_took(timing):
    app = slow_app(timing, batch_wait_timeout_s=0)
    async with app.lifespan():
        await ask(app, "/slow", 1)
        await ask(app, "/slow", "refused, so that no batch has it")
        took_s = anyio.current_time()
    assert 0 < seconds(app)["slow", "sum"] <= took_s


async def test_a_body_that_comes_late_is_part_of_the_request_and_not_of_its_wait():
    app = slow_app()

    @app.endpoint("/full", max_batch_size=2, batch_wait_timeout_s=5)
    async def full(items: list[int]) -> list[int]:
        return items

    async with served(app) as server:
        client = server.connect()
        client.say(asked("/full", 12)[:-1])
        await anyio.sleep(4)
        client.say(b"2")
        await anyio.sleep(4)
        assert not client.wire.sent  # its batch waits for others for 5 s
        await anyio.sleep(2)
        assert client.answers == [(200, b"12")]
    assert seconds(app)["full", "sum"] == pytest.approx(9)


async def test_the_date_of_an_answer_is_that_of_its_second(monkeypatch):
    wall = 1e9 + 0.75
    monkeypatch.setattr(time, "time", lambda: wall)
    async with served(slow_app()) as server:
        client = server.connect()

        async def date_after(seconds):
            nonlocal wall
            await anyio.sleep(seconds)
            wall += seconds
            client.wire.sent = b""
            client.ask("/nowhere", 1)
            await anyio.wait_all_tasks_blocked()
            return client.wire.sent.partition(b"\r\ndate: ")[2].partition(b" GMT")[0][-2:]

        found = [await date_after(seconds) for seconds in (0, 0.2, 0.1, 0.9, 0.1, 3)]
    assert found == [b"40", b"40", b"41", b"41", b"42", b"45"]


@pytest.mark.real_time
async def test_a_request_takes_parts_of_a_millisecond(app):
    @app.endpoint("/same", name="same")
    async def same(items: list[int]) -> list[int]:
        return items

    async with served(app) as server:
        client = server.connect()
        for nth in range(20):
            client.ask("/same", nth)
            while len(client.answers) <= nth:
                await anyio.lowlevel.checkpoint()
    milliseconds = 1000 * seconds(app)["same", "sum"]
    assert milliseconds != pytest.approx(round(milliseconds), abs=1e-6)  # as uvloop's clock counts


# ``X-Request-Timeout``: how long a client waits, which can only shorten the server's limit


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


async def test_it_limits_the_wait_for_traffic_as_well(app):
    async with app.lifespan():
        await app.controller.create_endpoint("idle", backend=None, route="/idle")
        answer, seconds = await timed(app, "3", "/idle")
        assert (answer.status, seconds) == (504, pytest.approx(3))


async def test_what_the_wait_for_traffic_took_is_not_given_twice(held, app):
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


async def test_a_call_over_a_server_is_limited_too(held_app, held):
    """With nothing around the application, no task waits for the call."""
    async with served(held_app) as server:
        client = server.connect()
        client.ask("/held", 3, headers=["X-Request-Timeout: 1.5"])
        await anyio.sleep(1.4)
        assert client.answers == []
        await anyio.sleep(0.2)
        [answer] = client.answers
        assert answer[0] == 504
        assert kind_of(answer) == "deadline-exceeded"


# ``Server-Timing``: how long a request waited and ran, for clients that may know it


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
    answer = await ask_once(slow_app("always"), "/steps", 1)
    assert timing_of(answer.headers["server-timing"]) == {"queue": 0, "wait": 0}


async def test_a_client_asks_for_it_where_it_may():
    for headers, there in [([], False), ([("X-Server-Timing", "1")], True)]:
        answer = await ask_once(slow_app("asked"), "/slow", 1, headers=headers)
        assert ("server-timing" in answer.headers) is there


async def test_without_the_option_nobody_is_told(app):
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

    answer = await ask_once(app, "/v1/embeddings", {"model": "embed", "input": ["a", "b", "c"]})
    assert answer.status == 200, answer.body
    assert timing_of(answer.headers["server-timing"])["queue"] == 2000
