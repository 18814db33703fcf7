"""The recipes for callers: CORS, keys, scopes, rates and sizes, on both event loops."""

import json

import anyio
import pytest
from starlette.middleware import Middleware

import shoal
from examples.access.app import NEEDED, app
from examples.access.limits import BodyLimit, RateLimit
from handlers import ask_once
from shoal.testing.asgi import Call, ask, calling
from socket_in_memory import opened

pytestmark = pytest.mark.real_time

READER = "reader-key-of-32-random-characters"
WRITER = "writer-key-of-32-random-characters"


def bearer(key):
    return [("authorization", f"Bearer {key}")]


@pytest.mark.parametrize("headers", [bearer(READER), [("x-api-key", READER)]])
async def test_a_key_is_taken_in_either_header(headers):
    async with app.lifespan():
        answer = await ask(app, "/length", "eel", headers=headers)
        assert (answer.status, answer.json()) == (200, 3)
        assert (await ask(app, "/me", method="GET", headers=headers)).json() == "reader"


@pytest.mark.parametrize(
    ("path", "headers", "status", "challenge"),
    [
        ("/length", [], 401, 'Bearer realm="models"'),
        ("/length", bearer("wrong"), 401, 'Bearer realm="models"'),
        ("/length", bearer("\xe9"), 401, 'Bearer realm="models"'),
        ("/length", [("authorization", "Basic YTpi")], 401, 'Bearer realm="models"'),
        ("/store", bearer(READER), 403, 'Bearer error="insufficient_scope", scope="write"'),
        ("/forgotten", bearer(WRITER), 403, 'Bearer error="insufficient_scope"'),
        ("/length/", bearer(WRITER), 403, 'Bearer error="insufficient_scope"'),
    ],
)
async def test_others_are_refused_before_their_body_is_read(path, headers, status, challenge):
    async with app.lifespan():
        call = Call(app, path, headers=headers, whole=False)  # the body does not come
        async with calling(call):
            await call.returned.wait()
    assert (call.status, call.headers["www-authenticate"]) == (status, challenge)
    assert call.headers["content-type"] == "application/problem+json"
    assert json.loads(call.body)["status"] == status


async def test_a_scope_opens_its_endpoint():
    assert (await ask_once(app, "/store", "eel", headers=bearer(WRITER))).json() == "stored eel"


async def test_a_page_may_ask_for_its_origin_without_a_key():
    headers = [("origin", "https://page.example"), ("access-control-request-method", "POST")]
    async with app.lifespan():
        answer = await ask(app, "/length", method="OPTIONS", headers=headers)
        other = [("origin", "https://evil.example"), headers[1]]
        refusal = await ask(app, "/length", method="OPTIONS", headers=other)
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert refusal.status == 400


async def test_health_needs_no_key():
    assert (await ask_once(app, "/-/healthz", method="GET")).status == 200


async def test_the_document_says_which_scopes_an_endpoint_needs():
    async with app.lifespan():
        headers = bearer(READER)
        refusal = await ask(app, "/-/openapi.json", method="GET")
        answer = await ask(app, "/-/openapi.json", method="GET", headers=headers)
    assert refusal.status == 401
    document = answer.json()
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"] == {"type": "http", "scheme": "bearer"}
    assert schemes["key"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    needed = {path: item for path, item in NEEDED.items() if not path.startswith("/-/")}
    assert {*document["paths"]} == {*needed}
    for path, scopes in needed.items():
        for operation in document["paths"][path].values():
            assert operation["security"] == [{"bearer": scopes}, {"key": scopes}]
            assert {"401", "403"} <= {*operation["responses"]}


def limited(*middleware):
    limited = shoal.App(middleware=middleware)

    @limited.endpoint("/length")
    async def length(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    return limited


async def test_a_caller_that_sends_too_often_is_told_when_to_come_back():
    limited_app = limited(Middleware(RateLimit, rate="2/hour"))
    answers = [await ask_once(limited_app, "/length", "eel") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    first, last = answers[0].headers, answers[-1].headers
    assert first["ratelimit-policy"] == '"caller";q=2;w=3600'
    assert first["ratelimit"].startswith('"caller";r=1;t=')
    assert 1 <= int(last["retry-after"]) <= 3600
    assert last["ratelimit"] == f'"caller";r=0;t={last["retry-after"]}'
    assert "retry-after" not in first


async def test_each_caller_has_its_own_rate():
    rates = Middleware(RateLimit, rate="1/hour")
    named = shoal.App(middleware=[*app_middleware(), rates])

    @named.post("/x")
    async def x(item: int) -> int:
        return item

    statuses = [
        (await ask_once(named, "/x", 1, headers=bearer(key))).status
        for key in (READER, READER, WRITER)
    ]
    assert statuses == [200, 429, 200]


def app_middleware():
    from starlette.middleware.authentication import AuthenticationMiddleware

    from examples.access.app import CALLERS
    from examples.access.callers import Keys

    return [Middleware(AuthenticationMiddleware, backend=Keys(CALLERS))]


async def test_a_large_body_is_refused_by_its_length_or_while_it_comes():
    small = limited(Middleware(BodyLimit, most={"/length": 10}))
    async with small.lifespan():
        assert (await ask(small, "/length", "eel")).status == 200
        assert (await ask(small, "/length", "e" * 20)).status == 413
        for length in ("20", "9" * 5000):
            declared = [("content-length", length)]
            assert (await ask(small, "/length", "eel", headers=declared)).status == 413
        declared = [("content-length", "0" * 5000 + "5")]
        assert (await ask(small, "/length", "eel", headers=declared)).status in (200, 400)
        assert (await ask(small, "/-/healthz", method="GET")).status == 200


@pytest.mark.parametrize(
    ("limit", "items", "closed"),
    [
        (Middleware(RateLimit, rate="3/hour"), ["eel"] * 3, (1008, "the caller sends too often")),
        (
            Middleware(BodyLimit, most={"/length": 40}),
            ["eel", "e" * 40],
            (1009, "more than 40 bytes"),
        ),
    ],
)
async def test_limits_hold_for_each_request_on_a_websocket(limit, items, closed):
    app = limited(limit)
    async with app.lifespan(), opened(app, "/length") as socket:
        for n, item in enumerate(items[:-1], 1):
            assert await socket.ask(id=n, item=item) == {"id": n, "result": 3}
        socket.say(id=len(items), item=items[-1])
        assert await socket.closed() == closed


async def test_a_websocket_sends_nothing_after_its_end():
    app = limited(Middleware(RateLimit, rate="2/hour"))
    release = anyio.Event()

    @app.endpoint("/held")
    async def held(texts: list[str]) -> list[str]:
        await release.wait()
        return texts

    async with app.lifespan(), opened(app, "/held") as socket:
        socket.say(id=1, item="eel")
        socket.say(id=2, item="eel")
        assert await socket.closed() == (1008, "the caller sends too often")
        release.set()
        await socket.returned.wait()
        assert not socket.sent
