"""How long requests took: on the loop's clock, so to the microsecond in virtual time."""

import time
from collections import Counter

import anyio
import anyio.lowlevel
import pytest
from held_app import served, slow_app

import shoal
from shoal.testing.asgi import ask


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
        since = anyio.current_time()
        await ask(app, "/slow", 1)
        await ask(app, "/slow", "refused, so that no batch has it")
        took_s = anyio.current_time() - since
    assert 0 < seconds(app)["slow", "sum"] <= took_s


async def test_a_body_that_comes_late_is_part_of_the_request_and_not_of_its_wait():
    app = slow_app()

    @app.endpoint("/full", max_batch_size=2, batch_wait_timeout_s=5)
    async def full(items: list[int]) -> list[int]:
        return items

    async with served(app) as server:
        client = server.connect()
        client.say(
            b"POST /full HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n1"
        )
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
async def test_a_request_takes_parts_of_a_millisecond():
    app = shoal.App()

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
