"""Equal requests over HTTP that share one call of the code, and cached results."""

from __future__ import annotations

import itertools
import json
from typing import Any

import anyio
import pytest
from held_app import counted, served

import shoal
from shoal.testing import settle
from shoal.testing.asgi import ask

pytestmark = pytest.mark.anyio

CACHE = shoal.Cache(max_size=10, ttl_s=60)


class Slow:
    """An application whose endpoints take a second; notes the items."""

    def __init__(self, **options: Any) -> None:
        self.items: list[Any] = []
        self.app = shoal.App()
        options = {"max_batch_size": 8, "placement": "task"} | options
        self.app.endpoint("/unary", **options)(self.unary)
        self.app.endpoint("/stream", **options)(self.stream)
        self.app.endpoint("/of/{name}", **options)(self.of)

    async def unary(self, items: list[dict[str, int]]) -> list[dict[str, int]]:
        self.items += items
        await anyio.sleep(1)
        return [{"twice": 2 * item["value"]} for item in items]

    async def of(self, items: list[int]) -> list[int]:
        self.items += items
        await anyio.sleep(1)
        return items

    async def stream(self, items: list[dict[str, int]]) -> Any:
        self.items += items
        for nth in range(2):
            await anyio.sleep(1)
            yield [f"{item['value']}.{nth}" for item in items]


async def asked_together(app: shoal.App, *requests: tuple[str, Any, dict[str, str]]) -> list[Any]:
    """The bodies of the answers to requests that are made at the same time."""
    bodies: list[Any] = [None] * len(requests)

    async def one(nth: int, path: str, item: Any, headers: dict[str, str]) -> None:
        answer = await ask(app, path, item, headers=headers.items())
        bodies[nth] = answer.body if path == "/stream" else answer.json()

    async with anyio.create_task_group() as tasks:
        for nth, request in enumerate(requests):
            tasks.start_soon(one, nth, *request)
    return bodies


async def test_equal_requests_share_a_call():
    slow = Slow(dedupe=True)
    async with slow.app.lifespan():
        request = ("/unary", {"value": 3}, {})
        assert await asked_together(slow.app, request, request) == [{"twice": 6}] * 2
        assert slow.items == [{"value": 3}]
        stream = ("/stream", {"value": 3}, {})
        one, other = await asked_together(slow.app, stream, stream)
        assert one == other
        assert b"3.0" in one
        assert b"3.1" in one
    assert slow.items == [{"value": 3}] * 2


async def test_the_server_itself_shares_without_tasks():
    slow = Slow(cache=CACHE)
    async with served(slow.app) as server:
        first, second, third = [server.connect() for _ in range(3)]
        first.ask("/unary", {"value": 3})
        second.ask("/unary", {"value": 3})
        await anyio.sleep(1.5)
        assert [json.loads(one.answers[0][1]) for one in (first, second)] == [{"twice": 6}] * 2
        third.ask("/unary", {"value": 3})
        await settle()
        assert json.loads(third.answers[0][1]) == {"twice": 6}
    assert slow.items == [{"value": 3}]


async def test_a_cached_result_is_answered_though_the_key_function_changes_its_mind():
    asked = itertools.count(1)
    items: list[int] = []
    app = shoal.App()

    def every_second(_item: int) -> object:
        nth = next(asked)
        return "kept" if nth % 2 == 0 else nth

    @app.endpoint("/same", dedupe=every_second, cache=CACHE)
    async def same(given: list[int]) -> list[int]:
        items.extend(given)
        return given

    async with served(app) as server:
        client = server.connect()
        for _ in range(4):
            client.ask("/same", 1)
            await settle()
        assert client.statuses == [200] * 4
        assert server.counts() == (4, 4)
    assert len(items) == 3


async def test_a_cached_result_that_can_not_be_written_fails_once_and_its_client_may_leave():
    app = shoal.App()

    @app.endpoint("/fail", name="fail", cache=CACHE)
    async def fail(items: list[int]) -> list[object]:
        return [object() for _ in items]

    async with served(app) as server:
        client, gone = server.connect(), server.connect()
        for _ in range(2):
            client.ask("/fail", 1)
            await settle()
        gone.ask("/fail", 1)
        gone.leave()
        await settle()
        assert client.statuses == [500, 500]
        assert gone.releases == 1
        assert server.counts() == (3, 3)
        assert counted(app, "fail") == (3, 3)


async def test_a_client_that_leaves_takes_it_from_nobody():
    slow = Slow(dedupe=True)
    async with served(slow.app) as server:
        first, second = server.connect(), server.connect()
        first.ask("/unary", {"value": 3})
        await settle()
        second.ask("/unary", {"value": 3})
        await anyio.sleep(0.5)
        first.leave()
        await anyio.sleep(1)
        assert json.loads(second.answers[0][1]) == {"twice": 6}
    assert slow.items == [{"value": 3}]


@pytest.mark.parametrize("directive", ["no-store", "max-age=0, No-Store", "no-cache"])
async def test_a_client_may_want_a_result_of_its_own(directive):
    slow = Slow(cache=CACHE)
    async with slow.app.lifespan():
        request = ("/unary", {"value": 3}, {})
        own = ("/unary", {"value": 3}, {"Cache-Control": directive})
        await asked_together(slow.app, request)
        await asked_together(slow.app, own, own)
        await asked_together(slow.app, ("/unary", {"value": 3}, {"Cache-Control": "max-age=9"}))
    assert len(slow.items) == 3


@pytest.mark.parametrize(
    ("headers", "calls"),
    [
        ({"Authorization": "Bearer other"}, 2),
        ({"Cookie": "session=other"}, 2),
        ({"X-API-Key": "other"}, 2),
        ({"X-Request-ID": "other", "User-Agent": "other"}, 1),
    ],
)
async def test_users_do_not_share(headers, calls):
    slow = Slow(dedupe=True)
    async with slow.app.lifespan():
        mine = {"Authorization": "Bearer mine", "Cookie": "session=mine", "X-API-Key": "mine"}
        await asked_together(
            slow.app, ("/unary", {"value": 3}, mine), ("/unary", {"value": 3}, mine | headers)
        )
    assert len(slow.items) == calls


async def test_path_parameters_are_part_of_a_request():
    slow = Slow(dedupe=True)
    async with slow.app.lifespan():
        await asked_together(slow.app, ("/of/a", 1, {}), ("/of/b", 1, {}), ("/of/a", 1, {}))
    assert slow.items == [1, 1]


async def test_hits_are_counted():
    slow = Slow(cache=CACHE)
    async with slow.app.lifespan():
        request = ("/unary", {"value": 3}, {})
        await asked_together(slow.app, request, request)
        await asked_together(slow.app, request)
        metrics = (await ask(slow.app, "/-/metrics", method="GET")).body.decode()
    assert 'shoal_shared_requests_total{backend="unary",method="__call__"} 1.0' in metrics
    assert 'shoal_cache_hits_total{backend="unary",method="__call__"} 1.0' in metrics
    assert (
        'shoal_requests_total{backend="unary",method="__call__",outcome="finished"} 3.0' in metrics
    )


class Versioned:
    """Code whose results depend on its user config."""

    def __init__(self) -> None:
        self.version = "none"

    async def reconfigure(self, user_config: str) -> None:
        self.version = user_config

    async def __call__(self, item: int) -> str:
        return f"{self.version} {item}"


@pytest.mark.real_time  # a class is constructed in a thread
async def test_a_new_user_config_makes_new_results():
    async with shoal.start() as client:
        config = {"cache": {"max_size": 10, "ttl_s": 60}, "user_config": "one"}
        await client.create_backend("b", Versioned, config=config)
        await client.create_endpoint("e", backend="b")
        handle = await client.get_handle("e")
        assert await handle.call(1) == "one 1"
        await client.update_backend_config("b", {"user_config": "two"})
        assert await handle.call(1) == "two 1"
        await client.restart_backend("b")
        assert await handle.call(1) == "two 1"
        found = (await client.get_backend_config("b")).as_dict()
        assert found["cache"] == shoal.Cache(max_size=10, ttl_s=60)


@pytest.mark.real_time
async def test_versions_of_a_backend_share_nothing():
    async with shoal.start() as client:
        for version in ("one", "two"):
            config = {"dedupe": True, "user_config": version}
            await client.create_backend(version, Versioned, config=config)
        await client.create_endpoint("e", backend="one")
        handle = await client.get_handle("e")
        assert await handle.call(1) == "one 1"
        await client.set_traffic("e", {"two": 1.0})
        assert await handle.call(1) == "two 1"
        assert (await client.get_backend_config("one")).as_dict()["dedupe"] is True
