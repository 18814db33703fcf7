"""Who gets a result of one's own over HTTP: other users, and clients who ask for it."""

from dataclasses import dataclass
from typing import Any

import pytest
from sharing_app import CACHE, Slow, asked_together

import shoal
from shoal.testing.asgi import ask

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


async def test_a_client_of_openai_may_want_a_result_of_its_own():
    seen: list[str] = []
    app = shoal.App(protocols=["openai"])

    @app.endpoint("/upper", name="upper", cache=CACHE)
    async def upper(prompts: list[str]) -> list[str]:
        seen.extend(prompts)
        return [prompt.upper() for prompt in prompts]

    @app.endpoint("/words", name="words", cache=CACHE)
    async def words(prompts: list[str]) -> Any:
        seen.extend(prompts)
        yield [prompt + " " for prompt in prompts]

    async with app.lifespan():
        for model in ("upper", "words"):
            asked = {"model": model, "prompt": "a", "stream": model == "words"}
            for headers in ({}, {}, NO_STORE, {}):
                answer = await ask(app, "/v1/completions", asked, headers=headers.items())
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
