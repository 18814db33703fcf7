"""`App` in FastAPI, Starlette and Litestar, FastAPI in an `App`, and marks of FastAPI."""

import re
from contextlib import asynccontextmanager
from typing import Annotated

import anyio
import fastapi
import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import shoal
from handlers import ask_once
from shoal.errors import LifespanFailed
from shoal.testing.asgi import ask


def models():
    app = shoal.App()

    @app.endpoint("/length", max_batch_size=8)
    async def length(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @app.endpoint("/letters")
    async def letters(texts: list[str]):
        for letter in texts[0]:
            yield [letter]

    return app


@pytest.fixture
def outer():
    return models()


def in_fastapi(models):
    site = FastAPI(lifespan=models.lifespan)

    @site.get("/hello")
    async def hello() -> str:
        return "hello"

    site.mount("/ml", models)
    return site, site.router.lifespan_context(site)


def in_starlette(models):
    routes = [Route("/hello", lambda _: PlainTextResponse("hello")), Mount("/ml", app=models)]
    site = Starlette(lifespan=models.lifespan, routes=routes)
    return site, site.router.lifespan_context(site)


def in_litestar(models):
    from litestar import Litestar, asgi, get  # which takes a while
    from litestar.types import Receive, Scope, Send

    @asgi("/ml", is_mount=True, copy_scope=True)
    async def ml(scope: Scope, receive: Receive, send: Send) -> None:
        # Litestar removes the prefix, and adds a slash.
        path = "/ml" + scope["path"].rstrip("/")
        await models({**scope, "root_path": "/ml", "path": path}, receive, send)

    @get("/hello")
    async def hello() -> str:
        return "hello"

    site = Litestar([ml, hello], lifespan=[models.lifespan], logging_config=None)
    return site, site.lifespan()


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette, in_litestar])
async def test_an_app_is_mounted_and_opened_by_the_lifespan_around_it(mount):
    inner = models()
    site, lifespan = mount(inner)
    transport = httpx.ASGITransport(app=site)
    async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
        assert (await client.post("/ml/length", json="eel")).status_code == 503
        async with lifespan:
            assert (await client.post("/ml/length", json="eel")).json() == 3
            stream = await client.post("/ml/letters", json="ab")
            assert 'data: "a"\n\ndata: "b"\n\nevent: end' in stream.text
            assert (await client.get("/ml/-/healthz")).json() == {"status": "alive"}
            assert (await client.post("/ml/nowhere", json=1)).status_code == 404
            assert "hello" in (await client.get("/hello")).text
        assert (await client.post("/ml/length", json="eel")).status_code == 503


@asynccontextmanager
async def noted(log, name):
    log.append(f"{name} opens")
    yield {"name": name}
    log.append(f"{name} closes")


def api(log, name="api"):
    site = FastAPI(lifespan=lambda _: noted(log, name))

    @site.get("/whoami")
    async def whoami(request: Request) -> dict[str, str]:
        return {"name": request.state.name, "url": str(request.url_for("whoami"))}

    return site


@pytest.mark.parametrize("prefix", ["/api", "/"])
async def test_fastapi_is_mounted_with_its_lifespan_and_state(prefix, outer):
    log = []
    outer.mount(prefix, api(log), lifespan=True)
    below = prefix.rstrip("/")
    async with outer.lifespan():
        assert log == ["api opens"]
        answer = (await ask(outer, f"{below}/whoami", method="GET")).json()
        assert (answer["name"], answer["url"]) == ("api", f"http://127.0.0.1:2{below}/whoami")
        assert (await ask(outer, "/length", "eel")).json() == 3
        assert (await ask(outer, f"{below}/openapi.json", method="GET")).status == 200
    assert log == ["api opens", "api closes"]


async def test_what_middleware_says_of_a_request_stays_in_its_state():
    log = []

    def telling(app):
        async def tell(scope, receive, send):
            scope.setdefault("state", {})["user"] = "eel"
            await app(scope, receive, send)

        return tell

    inner = api(log)

    @inner.get("/user")
    async def user(request: Request) -> list[str]:
        return [request.state.user, request.state.name]

    outer = shoal.App(middleware=[telling])
    outer.mount("/api", inner, lifespan=True)
    assert (await ask_once(outer, "/api/user", method="GET")).json() == ["eel", "api"]


async def test_lifespans_start_as_they_were_mounted_and_end_in_reverse(app):
    log = []
    for prefix in ("/b", "/a/long/one", "/", "/cc"):
        app.mount(prefix, api(log, prefix), lifespan=True)
    async with app.lifespan():
        pass
    order = ["/b", "/a/long/one", "/", "/cc"]
    opens = [f"{prefix} opens" for prefix in order]
    assert log == [*opens, *(f"{prefix} closes" for prefix in reversed(order))]
    answer = await ask(app, "/-/routes", method="GET")
    assert answer.json()["mounts"] == order


async def test_a_lifespan_can_not_be_mounted_when_it_would_not_run(outer):
    async with outer.lifespan():
        with pytest.raises(RuntimeError, match=r"^/api: with a lifespan, mount before the app"):
            outer.mount("/api", api([]), lifespan=True)
        outer.mount("/other", api([]))
        assert (await ask(outer, "/other/openapi.json", method="GET")).status == 200


async def test_it_can_call_endpoints_while_it_starts_and_ends():
    outer, seen = models(), []

    @asynccontextmanager
    async def calling(_):
        handle = await outer.controller.get_handle("length")
        seen.append(await handle.call("eel"))
        yield
        seen.append(await handle.call("herring"))

    outer.mount("/api", FastAPI(lifespan=calling), lifespan=True)
    async with outer.lifespan():
        pass
    assert seen == [3, 7]


async def test_one_that_does_not_start_fails_the_start(outer):
    log = []

    @asynccontextmanager
    async def failing(_):
        raise OSError("no database")
        yield

    outer.mount("/a/longer", api(log), lifespan=True)
    outer.mount("/b", FastAPI(lifespan=failing), lifespan=True)
    with pytest.raises(LifespanFailed, match="did not start: OSError: no database"):
        async with outer.lifespan():
            pass
    assert log == ["api opens", "api closes"]


async def test_a_failure_at_its_end_is_logged(caplog, outer):
    @asynccontextmanager
    async def failing(_):
        yield
        raise OSError("the disk is full")

    outer.mount("/api", FastAPI(lifespan=failing), lifespan=True)
    async with outer.lifespan():
        pass
    assert "OSError: the disk is full" in caplog.text


async def test_one_that_does_not_end_is_cancelled(caplog, outer):
    ended = []

    @asynccontextmanager
    async def staying(_):
        yield
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    outer.mount("/api", FastAPI(lifespan=staying), lifespan=True)
    async with outer.lifespan():
        pass
    assert ended == [True]
    assert "did not shut down within 10.0 s" in caplog.text


async def test_an_application_without_a_lifespan_may_be_mounted_so(outer):
    async def plain(scope, receive, send):
        assert scope["type"] == "http"
        await PlainTextResponse("plain")(scope, receive, send)

    outer.mount("/plain", plain, lifespan=True)
    assert (await ask_once(outer, "/plain/x", method="GET")).body == b"plain"


async def test_its_lifespan_is_not_run_unless_asked_for(outer):
    log = []
    outer.mount("/api", api(log))
    async with outer.lifespan():
        assert log == []


@pytest.mark.parametrize("options", [{}, {"lifespan": True}])
async def test_the_docs_page_shows_a_mounted_fastapi_beside_the_endpoints(options):
    site = FastAPI()

    @site.get("/hello")
    async def hello() -> str:
        return "hello"

    app = models()
    app.mount("/api", site, **options)
    async with app.lifespan():
        page = (await ask(app, "/-/docs", method="GET")).body.decode()
        urls = re.findall(r"&quot;url&quot;:&quot;([^&]*)&quot;", page)
        assert urls == ["openapi.json", "/api/openapi.json"]
        ours, theirs = [
            (await ask(app, path, method="GET")).json() for path in ("/-/openapi.json", urls[1])
        ]
    assert {*ours["paths"]} == {"/length", "/letters"}
    assert {*theirs["paths"]} == {"/hello"}


# Annotations that would let a client set what code trusts, which are refused


@pytest.mark.parametrize(
    ("annotation", "default", "words"),
    [
        (Annotated[int, fastapi.Depends(int)], ..., r"'one' is marked with Depends\(\) of FastAPI"),
        (Annotated[int, fastapi.Security(int)], ..., r"'one' is marked with Security\(\) of FastA"),
        (Annotated[str, fastapi.Header()], ..., r"'one' is marked with Header\(\) of FastAPI"),
        (Annotated[str, fastapi.Body()], ..., r"'one' is marked with Body\(\) of FastAPI"),
        (Annotated[bytes, fastapi.File()], ..., r"'one' is marked with File\(\) of FastAPI"),
        (fastapi.UploadFile, ..., "'one' is an UploadFile, which JSON can't hold"),
        (int, fastapi.Depends(int), r"'one' is marked with Depends\(\) of FastAPI"),
        (int, fastapi.Query(5), r"'one' is marked with Query\(\) of FastAPI"),
    ],
)
@pytest.mark.parametrize("others", [False, True])
def test_what_only_fastapi_obeys_is_refused(annotation, default, words, others):
    def alone(one=default): ...

    def beside(text: str, one=default): ...

    handler = beside if others else alone
    handler.__annotations__["one"] = annotation
    if default is ...:
        handler.__defaults__ = None
    with pytest.raises(TypeError, match=words):
        shoal.App().post("/x")(handler)


@pytest.mark.one_loop
async def test_a_dependency_is_never_what_a_caller_says(app):
    def trusting(user: Annotated[str, fastapi.Depends(str)]) -> str:
        return user

    app.backend("trusting", trusting)
    app.route("trusting", backend="trusting", path="/x")
    async with app.lifespan():
        assert (await ask(app, "/x?user=admin", method="GET")).status == 500
        assert (await ask(app, "/x", "admin")).status == 500
        assert (await ask(app, "/x", {"user": "admin"})).status == 500
