"""Middleware before the endpoints of an App, and around one."""

from __future__ import annotations

import pytest
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import shoal
from shoal.http.app.middleware import within
from shoal.testing.asgi import ask

pytestmark = pytest.mark.anyio

ORIGIN = [("origin", "https://page.example")]


def noting(name, passed):
    def wrap(app):
        async def run(scope, receive, send):
            passed.append(name)
            await app(scope, receive, send)

        return run

    return wrap


def make(middleware):
    app = shoal.App(middleware=middleware)

    @app.endpoint("/double")
    async def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    return app


async def test_the_first_is_the_outermost_and_all_stand_before_endpoints_and_mounts():
    passed = []
    app = make([noting("outer", passed), noting("inner", passed)])
    app.mount("/below", make([]))
    async with app.lifespan():
        assert (await ask(app, "/double", 2)).json() == 4
        await ask(app, "/below/x")
        await ask(app, "/nowhere")
    assert passed == ["outer", "inner"] * 3


@pytest.mark.parametrize("page", ["healthz", "readyz", "metrics", "routes"])
async def test_the_applications_own_routes_are_not_behind_it(page):
    passed = []
    app = make([noting("outer", passed)])
    async with app.lifespan():
        assert (await ask(app, f"/-/{page}", method="GET")).status == 200
    assert passed == []


async def test_starlettes_middleware_answers_a_preflight():
    app = make([Middleware(CORSMiddleware, allow_origins=["https://page.example"])])
    preflight = [*ORIGIN, ("access-control-request-method", "POST")]
    async with app.lifespan():
        asked = await ask(app, "/double", method="OPTIONS", headers=preflight)
        answer = await ask(app, "/double", 2, headers=ORIGIN)
    assert asked.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert answer.json() == 4


@pytest.mark.parametrize("wrong", ["cors", CORSMiddleware, [3], [None]])
def test_what_is_no_middleware_is_refused(wrong):
    with pytest.raises(TypeError, match=r"middleware (must be|takes)"):
        shoal.App(middleware=wrong)


def test_the_application_is_found_within_its_middleware():
    app = make([])
    wrapped = CORSMiddleware(CORSMiddleware(app))
    assert within(wrapped, shoal.App) is within(app, shoal.App) is app
    assert within(object(), shoal.App) is None
    wrapped.app = wrapped
    assert within(wrapped, shoal.App) is None
