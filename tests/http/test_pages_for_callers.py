"""The page with the OpenAPI document, its files, and the page at the root of an application."""

import gzip
import hashlib
import re
import shlex
from importlib.resources import files

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.http.openapi.landing import MOST_SHOWN, landing_page
from shoal.http.openapi.page import FILES
from shoal.http.requests.protocol import ProtocolRoutes
from shoal.testing.asgi import ask

pytestmark = pytest.mark.anyio

STATIC = files("shoal.http.openapi") / "static"
AS_HTML = ("accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")


async def doubled(items: list[int]) -> list[int]:
    return [2 * item for item in items]


async def raw(items: list[bytes]) -> list[int]:
    return [len(item) for item in items]


def steps(item: int):
    yield item


async def asked(request: Request) -> str:
    return request.url.path


@pytest.fixture
def app():
    app = shoal.App(title="<Fish> & 'chips'")
    app.endpoint("/double", name="double")(doubled)
    app.endpoint("/raw", name="raw", methods=("PUT",))(raw)
    app.endpoint("/steps/{id:int}", name="steps", methods=("POST",))(steps)
    app.endpoint("/it's $(here)", name="asked", methods=("GET",))(asked)
    return app


async def get(app, path, *headers, **asked):
    return await ask(app, path, method="GET", headers=headers, **asked)


async def landed(app, *headers, **asked):
    """The page at the root as data."""
    answer = await get(app, "/", *headers, **asked)
    assert answer.status == 200
    return answer.json()


async def guarding(scope, receive, send):
    await PlainTextResponse("no", 401)(scope, receive, send)


def guard(_app):
    return guarding


async def test_the_page_at_the_root_lists_what_is_served_and_how_to_call_it(app):
    async with app.lifespan():
        found = await landed(app, ("host", "fish.test:8000"))
    calls = {one["name"]: shlex.split(one["call"]) for one in found["endpoints"]}
    base = "http://fish.test:8000"
    assert calls["double"] == [
        *("curl", "-H", "Content-Type: application/json", "--data", "@item.json"),
        f"{base}/double",
    ]
    assert calls["raw"] == ["curl", "-X", "PUT", "--data-binary", "@item", f"{base}/raw"]
    assert calls["steps"][:2] == ["curl", "-N"]
    assert calls["steps"][-1] == f"{base}/steps/ID"
    assert calls["asked"] == ["curl", f"{base}/it's%20$(here)"]
    assert found["links"]["docs"] == "/-/docs"


async def test_it_sends_a_file_to_an_endpoint_that_decodes_requests():
    app = shoal.App()

    @app.post("/files/{name}", decode=asked)
    def files(file: str) -> str:
        return file

    (one,) = (await landed(app, ("host", "fish.test:8000")))["endpoints"]
    assert one["takes"] == "request"
    assert one["call"] == "curl --data-binary @item http://fish.test:8000/files/NAME"


async def test_its_commands_have_what_a_call_requires_in_capitals():
    app = shoal.App()

    @app.get("/find")
    async def find(text: str, most: int = 3) -> str:
        return f"{text}{most}"

    async with app.lifespan():
        (one,) = (await landed(app, ("host", "fish.test")))["endpoints"]
        assert shlex.split(one["call"]) == ["curl", "http://fish.test/find?text=TEXT"]
        answer = await get(app, "/find?text=TEXT")
        assert (answer.status, answer.json()) == (200, "TEXT3")


class Whispers:
    def routes(self, controller, options):
        return Silent()


class Silent(ProtocolRoutes):
    def of(self, endpoint):
        return ()


async def test_it_names_the_other_protocols_and_where_they_begin():
    app = shoal.App(protocols=["openai", "oip", Whispers()])

    @app.endpoint("/say", name="say")
    async def say(prompts: list[str]) -> list[str]:
        return prompts

    async with app.lifespan():
        found = await landed(app, root_path="/ml")
        assert found["websocket"] == "shoal.v1"
        assert found["protocols"] == [
            {"title": "OpenAI's HTTP API", "start": "/ml/v1/models"},
            {"title": "Open Inference Protocol", "start": "/ml/v2"},
            {"title": "Whispers", "start": ""},
        ]
        for one in found["protocols"][:2]:
            assert (await get(app, one["start"].removeprefix("/ml"))).status == 200
        text = (await get(app, "/", AS_HTML)).body.decode()
    assert '<p>OpenAI&#x27;s HTTP API: <a href="./v1/models">/v1/models</a></p>' in text
    assert "<p>Whispers</p>" in text
    assert "<code>shoal.v1</code>" in text


async def test_a_browser_gets_it_as_a_page_in_which_all_names_are_escaped(app):
    answer = await get(app, "/", AS_HTML)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.body.decode()
    assert "&lt;Fish&gt; &amp; &#x27;chips&#x27;" in text
    assert "<Fish>" not in text
    assert "/it&#x27;s $(here)" in text
    assert 'href="./-/docs"' in text


async def test_it_shows_no_more_than_the_list_of_routes(app):
    routes = (await get(app, "/-/routes")).json()
    found = await landed(app)
    assert [{k: v for k, v in one.items() if k != "call"} for one in found["endpoints"]] == [
        one for one in routes["endpoints"] if one["path"] is not None
    ]


@pytest.mark.parametrize("path", ["/", "/-/docs"])
async def test_a_page_may_load_nothing_from_elsewhere(app, path):
    answer = await get(app, path, AS_HTML)
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in policy.get("script-src", "")
    assert not re.search(r"https?:|\*", " ".join(policy.values()))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r'(src|href)="(https?:)?//', answer.body.decode())


@pytest.mark.parametrize(
    "host", ["a.b/<script>", "x y", "", "$(rm)", "a.b:x", "a" * 300, "[::1]; ls", "é"]
)
async def test_a_host_that_is_not_plain_is_not_shown(app, host):
    found = await landed(app, ("host", host))
    assert found["endpoints"][0]["call"].endswith("http://localhost/double")


@pytest.mark.parametrize("host", ["[::1]:8000", "127.0.0.1", "my-host.example:80"])
async def test_the_host_that_the_client_asked_is_shown(app, host):
    found = await landed(app, ("host", host))
    words = shlex.split(found["endpoints"][0]["call"])
    assert words[-1] == f"http://{host}/double"


async def test_an_endpoint_at_the_root_or_for_any_path_is_there_instead():
    app = shoal.App()
    app.endpoint("/", name="home", methods=("POST",))(doubled)
    assert (await get(app, "/")).status == 405
    app = shoal.App()
    app.endpoint("/{any:path}", name="any")(asked)
    async with app.lifespan():
        assert (await get(app, "/")).json() == "/"


async def test_an_application_that_is_mounted_at_the_root_is_there_instead(app):
    app.mount("/", PlainTextResponse("mine"))
    assert (await get(app, "/")).body == b"mine"
    assert (await get(app, "/-/docs")).status == 200


async def test_the_root_has_no_other_methods_than_before(app):
    for method in ("POST", "OPTIONS", "DELETE"):
        assert (await ask(app, "/", method=method)).status == 404
    head = await ask(app, "/", method="HEAD")
    assert (head.status, head.body) == (200, b"")


async def test_it_may_be_turned_off():
    app = shoal.App(landing_page=False)
    assert (await get(app, "/")).status == 404
    app = shoal.App(openapi=False)
    found = await landed(app)
    assert "docs" not in found["links"]
    assert "openapi" not in found["links"]


async def test_the_pages_for_callers_are_guarded_as_the_endpoints_are(app):
    guarded = shoal.App(middleware=[guard])
    guarded.endpoint("/double")(doubled)
    for path in ("/", "/double", "/-/docs", "/-/openapi.json", "/-/docs/start.js"):
        assert (await get(guarded, path)).status == 401
    for path in ("/-/healthz", "/-/metrics", "/-/routes"):
        assert (await get(guarded, path)).status == 200


async def test_only_so_many_endpoints_are_shown():
    routes = [
        {"path": f"/{n}", "methods": ["POST"], "name": f"e{n}", "takes": None, "streams": False}
        for n in range(MOST_SHOWN + 3)
    ]
    page = landing_page(
        HttpOptions(), routes, [], {"type": "http"}, {b"accept": b"text/html"}, operations={}
    )
    assert page.body.count(b"<h2>") == MOST_SHOWN
    assert b"And 3 more." in page.body


async def test_the_pages_work_below_a_prefix(app):
    site = Starlette(routes=[Mount("/ml", app=app)])
    found = (await get(site, "/ml/")).json()
    assert found["links"]["docs"] == "/ml/-/docs"
    assert found["endpoints"][0]["call"].endswith("http://localhost/ml/double")
    assert (await get(site, found["links"]["docs"])).status == 200
    assert (await get(site, found["links"]["openapi"])).json()["servers"] == [{"url": "/ml"}]
    page = (await get(site, "/ml/", AS_HTML)).body.decode()
    assert 'href="/ml/-/docs"' in page
    viewer = (await get(site, "/ml/-/docs")).body.decode()
    loaded = re.findall(r'(?:src|href)="(docs/[^"]+)"', viewer)
    assert {one.removeprefix("docs/") for one in loaded} == set(FILES)
    for one in loaded:  # relative to /ml/-/docs
        assert (await get(site, f"/ml/-/{one}")).status == 200


async def test_the_viewer_also_shows_the_documents_of_mounted_applications(app):
    inner = Starlette()
    inner.openapi_url = "/openapi.json"
    app.mount("/api", inner)
    app.mount("/living", inner, lifespan=True)
    app.mount("/plain", Starlette())
    page = (await get(app, "/-/docs", root_path="/ml")).body.decode()
    assert "&quot;url&quot;:&quot;/ml/api/openapi.json&quot;" in page
    assert "&quot;url&quot;:&quot;/ml/living/openapi.json&quot;" in page
    assert "/plain" not in page


async def test_the_files_are_sent_as_the_client_accepts_them(app):
    plain = await get(app, "/-/docs/swagger-ui.css")
    packed = await get(app, "/-/docs/swagger-ui.css", ("accept-encoding", "br, gzip;q=0.5"))
    refused = await get(app, "/-/docs/swagger-ui.css", ("accept-encoding", "gzip;q=0"))
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body == refused.body
    assert plain.headers["content-type"] == "text/css; charset=utf-8"
    assert (await get(app, "/-/docs/README.md")).status == 404
    assert (await get(app, "/-/docs/..%2Fpage.py")).status == 404


@pytest.mark.parametrize("name", ["swagger-ui-bundle.js", "swagger-ui.css"])
def test_the_files_of_the_viewer_are_what_their_list_says(name):
    body = gzip.decompress((STATIC / f"{name}.gz").read_bytes())
    listed = (STATIC / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}.gz` | `{hashlib.sha256(body).hexdigest()}` |" in listed
    assert "Apache License" in (STATIC / "LICENSE-swagger-ui").read_text(encoding="utf-8")
