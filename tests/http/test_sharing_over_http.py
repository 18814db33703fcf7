"""Equal requests over HTTP that share one call of the code, and cached results."""

import itertools
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from held_app import counted, metrics_of, served

import shoal
from shoal.testing import settle
from shoal.testing.asgi import ask

CACHE = shoal.Cache(max_size=10, ttl_s=60)


class Slow:
    """An application whose endpoints take a second; notes the items."""

    def __init__(self, *, middleware: Any = (), **options: Any) -> None:
        self.items: list[Any] = []
        self.app = shoal.App(middleware=middleware)
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
    bodies: list[Any] = [None] * len(requests)

    async def one(nth: int, path: str, item: Any, headers: dict[str, str]) -> None:
        answer = await ask(app, path, item, headers=headers.items())
        bodies[nth] = answer.body if path == "/stream" else answer.json()

    async with anyio.create_task_group() as tasks:
        for nth, request in enumerate(requests):
            tasks.start_soon(one, nth, *request)
    return bodies


async def test_a_cached_result_is_answered_though_the_key_function_changes_its_mind(app):
    asked = itertools.count(1)
    items: list[int] = []

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


async def test_a_cached_result_that_can_not_be_written_fails_once_and_its_client_may_leave(app):
    @app.endpoint("/fail", name="fail", cache=CACHE)
    async def fail(items: list[int]) -> list[object]:
        return [object() for _ in items]

    async with served(app) as server:
        client, gone = server.connect(), server.connect()
        for _ in range(2):
            client.ask("/fail", 1)
            await settle()
        gone.ask("/fail", 1)
        gone.leave()  # before its call has begun
        await settle()
        assert client.statuses == [500, 500]
        assert gone.releases == 1
        assert server.counts() == (2, 2)
        assert counted(app, "fail") == (2, 2)


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
        metrics = await metrics_of(slow.app)
    assert 'shoal_shared_requests_total{backend="unary",method="__call__"} 1.0' in metrics
    assert 'shoal_cache_hits_total{backend="unary",method="__call__"} 1.0' in metrics
    assert (
        'shoal_requests_total{backend="unary",method="__call__",outcome="finished"} 3.0' in metrics
    )


# Who gets a result of one's own over HTTP: other users, and clients who ask for it


THREE = {"value": 3}
NO_STORE = {"Cache-Control": "no-store"}
MINE = dict.fromkeys(("Authorization", "Proxy-Authorization", "Cookie", "X-API-Key"), "mine")


@pytest.mark.parametrize("path", ["/unary", "/stream"])
@pytest.mark.parametrize("directive", ["no-store", "max-age=0, No-Store", "no-cache"])
async def test_a_client_may_want_a_result_of_its_own(path, directive):
    slow = Slow(cache=CACHE)
    async with slow.app.lifespan():
        own = (path, THREE, {"Cache-Control": directive})
        await asked_together(slow.app, (path, THREE, {}))
        await asked_together(slow.app, own, own)
        await asked_together(slow.app, (path, THREE, {"Cache-Control": "max-age=9"}))
    assert len(slow.items) == 3


async def test_a_client_of_openai_may_want_a_result_of_its_own(openai):
    seen: list[str] = []

    @openai.endpoint("/upper", name="upper", cache=CACHE)
    async def upper(prompts: list[str]) -> list[str]:
        seen.extend(prompts)
        return [prompt.upper() for prompt in prompts]

    @openai.endpoint("/words", name="words", cache=CACHE)
    async def words(prompts: list[str]) -> Any:
        seen.extend(prompts)
        yield [prompt + " " for prompt in prompts]

    async with openai.lifespan():
        for model in ("upper", "words"):
            asked = {"model": model, "prompt": "a", "stream": model == "words"}
            for headers in ({}, {}, NO_STORE, {}):
                answer = await ask(openai, "/v1/completions", asked, headers=headers.items())
                assert answer.status == 200
    assert seen == ["a"] * 4


async def calls_of(*users: dict[str, str], middleware: Any = (), **more: Any) -> set[int]:
    """How often the code is called for requests with these headers, at once and one by one."""
    requests = [("/unary", THREE, headers) for headers in users]
    at_once = Slow(middleware=middleware, **{"dedupe": True} | more)
    async with at_once.app.lifespan():
        await asked_together(at_once.app, *requests)
    one_by_one = Slow(middleware=middleware, cache=CACHE, **more)
    async with one_by_one.app.lifespan():
        for request in requests:
            await asked_together(one_by_one.app, request)
    return {len(at_once.items), len(one_by_one.items)}


@pytest.mark.parametrize("header", MINE)
async def test_users_do_not_share(header):
    assert await calls_of(MINE, MINE | {header: "other"}, MINE) == {2}


async def test_other_headers_do_not_tell_users_apart():
    assert await calls_of(MINE, MINE | {"X-Request-ID": "other", "User-Agent": "other"}) == {1}


async def test_users_share_if_the_key_function_says_so():
    assert await calls_of(MINE, {}, dedupe=lambda item: item["value"]) == {1}


@dataclass(frozen=True)
class User:
    name: bytes


@pytest.mark.parametrize("key", ["user", "auth"])
async def test_users_whom_middleware_has_found_out_do_not_share(key):
    def finding(app: Any) -> Any:
        async def found(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                scope = scope | {key: User(dict(scope["headers"])[b"x-name"])}
            await app(scope, receive, send)

        return found

    users = [{"X-Name": name} for name in ("ada", "bob", "ada")]
    assert await calls_of(*users, middleware=[finding]) == {2}
    assert await calls_of(*users) == {1}
