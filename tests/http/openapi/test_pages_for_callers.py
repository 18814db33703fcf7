"""The pages with the OpenAPI document and at the root of an application, in a browser as well."""

import gzip
import hashlib
import html
import re
import shlex
from importlib.resources import files

import pytest
from described_server import described_server
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

import shoal
from browser import NEEDS_CHROMIUM, addresses_asked, new_browser  # noqa: F401
from handlers import double
from shoal.http.app.pages import VIEWER_FILES
from shoal.http.requests.protocol import ProtocolRoutes
from shoal.testing.asgi import ask

pytestmark = pytest.mark.one_loop

STATIC = files("shoal.http.openapi") / "static"
LINK = re.compile(r'<a href="([^"]*)">([^<]*)</a>')


async def raw(items: list[bytes]) -> list[int]:
    return [len(item) for item in items]


def steps(item: int):
    yield item


async def asked(request: Request) -> str:
    return request.url.path


@pytest.fixture
def paged():
    app = shoal.App(title="<Fish> & 'chips'")
    app.endpoint("/double", name="double")(double)
    app.endpoint("/raw", name="raw", methods=("PUT",))(raw)
    app.endpoint("/steps/{id:int}", name="steps", methods=("POST",))(steps)
    app.endpoint("/it's $(here)", name="asked", methods=("GET",))(asked)
    return app


async def get(app, path, *headers, **asked):
    return await ask(app, path, method="GET", headers=headers, **asked)


async def landed(app, *headers, **asked):
    """The links of the page at the root, by name, and its commands."""
    answer = await get(app, "/", *headers, **asked)
    assert answer.status == 200
    text = answer.body.decode()
    links = {html.unescape(name): url for url, name in LINK.findall(text)}
    calls = html.unescape(text.partition("<pre>")[2].partition("</pre>")[0])
    return links, calls.strip().splitlines()


async def test_the_page_at_the_root_shows_how_to_call_what_is_served(paged):
    async with paged.lifespan():
        links, calls = await landed(paged, ("host", "fish.test:8000"))
    base = "http://fish.test:8000"
    assert [shlex.split(one) for one in calls] == [
        [
            *("curl", "-H", "Content-Type: application/json", "--data", "@item.json"),
            f"{base}/double",
        ],
        ["curl", "-X", "PUT", "--data-binary", "@item", f"{base}/raw"],
        [
            *("curl", "-N", "-H", "Content-Type: application/json", "--data", "@item.json"),
            f"{base}/steps/ID",
        ],
        ["curl", f"{base}/it's%20$(here)"],
    ]
    assert links["docs"] == "./-/docs"


async def test_it_sends_a_file_to_an_endpoint_that_decodes_requests(app):
    @app.post("/files/{name}", decode=asked)
    def files(file: str) -> str:
        return file

    async with app.lifespan():
        _, [call] = await landed(app, ("host", "fish.test:8000"))
    assert call == "curl --data-binary @item http://fish.test:8000/files/NAME"


async def test_its_commands_have_what_a_call_requires_in_capitals(app):
    @app.get("/find")
    async def find(text: str, most: int = 3) -> str:
        return f"{text}{most}"

    async with app.lifespan():
        _, [call] = await landed(app, ("host", "fish.test"))
        assert shlex.split(call) == ["curl", "http://fish.test/find?text=TEXT"]
        answer = await get(app, "/find?text=TEXT")
        assert (answer.status, answer.json()) == (200, "TEXT3")


class Whispers:
    def routes(self, controller, options):
        return Silent()


class Silent(ProtocolRoutes):
    def of(self, endpoint):
        return ()


async def test_it_links_to_the_other_protocols_and_mounted_applications():
    app = shoal.App(protocols=["openai", "oip", Whispers()])
    app.mount("/api", Starlette())

    @app.endpoint("/say", name="say")
    async def say(prompts: list[str]) -> list[str]:
        return prompts

    async with app.lifespan():
        links, _ = await landed(app, root_path="/ml")
        assert "Whispers" not in links, "it has no page"
        assert links["/api"] == "/ml/api"
        assert links["OpenAI's HTTP API"] == "/ml/v1/models"
        assert links["Open Inference Protocol"] == "/ml/v2"
        for path in ("/v1/models", "/v2"):
            assert (await get(app, path)).status == 200


async def test_all_names_of_the_page_are_escaped(paged):
    answer = await get(paged, "/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.body.decode()
    assert "&lt;Fish&gt; &amp; &#x27;chips&#x27;" in text
    assert "<Fish>" not in text
    assert "/it&#x27;" in text


@pytest.mark.parametrize("path", ["/", "/-/docs"])
async def test_a_page_may_load_nothing_from_elsewhere(paged, path):
    answer = await get(paged, path)
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
async def test_a_host_that_is_not_plain_is_not_shown(paged, host):
    _, calls = await landed(paged, ("host", host))
    assert calls[0].endswith("http://localhost/double")


@pytest.mark.parametrize("host", ["[::1]:8000", "127.0.0.1", "my-host.example:80"])
async def test_the_host_that_the_client_asked_is_shown(paged, host):
    _, calls = await landed(paged, ("host", host))
    assert shlex.split(calls[0])[-1] == f"http://{host}/double"


async def test_an_endpoint_at_the_root_or_for_any_path_is_there_instead():
    app = shoal.App()
    app.endpoint("/", name="home", methods=("POST",))(double)
    assert (await get(app, "/")).status == 405
    app = shoal.App()
    app.endpoint("/{any:path}", name="any")(asked)
    async with app.lifespan():
        assert (await get(app, "/")).json() == "/"


async def test_an_application_that_is_mounted_at_the_root_is_there_instead(paged):
    paged.mount("/", PlainTextResponse("mine"))
    assert (await get(paged, "/")).body == b"mine"
    assert (await get(paged, "/-/docs")).status == 200


async def test_the_root_has_no_other_methods_than_before(paged):
    for method in ("POST", "OPTIONS", "DELETE"):
        assert (await ask(paged, "/", method=method)).status == 404
    head = await ask(paged, "/", method="HEAD")
    assert (head.status, head.body) == (200, b"")


async def test_it_may_be_turned_off():
    app = shoal.App(landing_page=False)
    assert (await get(app, "/")).status == 404
    app = shoal.App(openapi=False)
    links, _ = await landed(app)
    assert {"docs", "openapi"}.isdisjoint(links)


async def test_the_pages_for_callers_are_guarded_as_the_endpoints_are(paged):
    guarded = shoal.App(middleware=[lambda _app: PlainTextResponse("no", 401)])
    guarded.endpoint("/double")(double)
    for path in ("/", "/double", "/-/docs", "/-/openapi.json", "/-/docs/start.js"):
        assert (await get(guarded, path)).status == 401
    for path in ("/-/healthz", "/-/metrics", "/-/routes"):
        assert (await get(guarded, path)).status == 200


async def test_the_pages_work_below_a_prefix(paged):
    site = Starlette(routes=[Mount("/ml", app=paged)])
    page = (await get(site, "/ml/")).body.decode()
    links = dict(pair[::-1] for pair in LINK.findall(page))
    assert links["docs"] == "/ml/-/docs"
    assert "http://localhost/ml/double" in page
    assert (await get(site, links["docs"])).status == 200
    assert (await get(site, links["openapi"])).json()["servers"] == [{"url": "/ml"}]
    viewer = (await get(site, "/ml/-/docs")).body.decode()
    loaded = re.findall(r'(?:src|href)="(docs/[^"]+)"', viewer)
    assert {one.removeprefix("docs/") for one in loaded} == set(VIEWER_FILES)
    for one in loaded:  # relative to /ml/-/docs
        assert (await get(site, f"/ml/-/{one}")).status == 200


async def test_the_viewer_also_shows_the_documents_of_mounted_applications(paged):
    inner = Starlette()
    inner.openapi_url = "/openapi.json"
    paged.mount("/api", inner)
    paged.mount("/living", inner, lifespan=True)
    paged.mount("/plain", Starlette())
    page = (await get(paged, "/-/docs", root_path="/ml")).body.decode()
    assert "&quot;url&quot;:&quot;/ml/api/openapi.json&quot;" in page
    assert "&quot;url&quot;:&quot;/ml/living/openapi.json&quot;" in page
    assert "/plain" not in page


async def test_the_files_are_sent_as_the_client_accepts_them(paged):
    plain = await get(paged, "/-/docs/swagger-ui.css")
    packed = await get(paged, "/-/docs/swagger-ui.css", ("accept-encoding", "br, gzip;q=0.5"))
    refused = await get(paged, "/-/docs/swagger-ui.css", ("accept-encoding", "gzip;q=0"))
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body == refused.body
    assert plain.headers["content-type"] == "text/css; charset=utf-8"
    assert (await get(paged, "/-/docs/README.md")).status == 404
    assert (await get(paged, "/-/docs/..%2Fpage.py")).status == 404


@pytest.mark.parametrize("name", ["swagger-ui-bundle.js", "swagger-ui.css"])
def test_the_files_of_the_viewer_are_what_their_list_says(name):
    body = gzip.decompress((STATIC / f"{name}.gz").read_bytes())
    listed = (STATIC / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}.gz` | `{hashlib.sha256(body).hexdigest()}` |" in listed
    assert "Apache License" in (STATIC / "LICENSE-swagger-ui").read_text(encoding="utf-8")


LIMIT_S = 60


@pytest.fixture(scope="module")
def url():
    with described_server("site") as address:
        yield f"{address}/ml"


@pytest.fixture
def nothing_is_wrong(browser, url):
    """The browser had nothing to complain of, and asked no other host."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what was before
    yield
    assert browser.get_log("browser") == []
    asked = addresses_asked(browser)
    origin = re.match(r"http://[^/]+", url)[0] + "/"
    assert any(one.startswith(origin) for one in asked)
    assert {one[:80] for one in asked if not one.startswith((origin, "data:"))} == set()


def find(browser, selector):
    return WebDriverWait(browser, LIMIT_S).until(
        lambda _: browser.find_elements(By.CSS_SELECTOR, selector)
    )[0]


def wait_for(browser, selector, *texts):
    """Waits until an element has these texts; a page of scripts makes its elements anew."""

    def has_them(_):
        found = browser.find_elements(By.CSS_SELECTOR, selector)
        return found and all(text in found[0].text for text in texts)

    WebDriverWait(browser, LIMIT_S, ignored_exceptions=[StaleElementReferenceException]).until(
        has_them
    )


def prefer(browser, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def changes_with_the_scheme(browser, selector, name):
    """Whether a colour is another one where the reader wants a light page; it is dark before."""
    dark = find(browser, selector).value_of_css_property(name)
    prefer(browser, "light")
    return WebDriverWait(browser, LIMIT_S).until(
        lambda _: find(browser, selector).value_of_css_property(name) != dark
    )


@pytest.mark.slow
@pytest.mark.real_time
@NEEDS_CHROMIUM
@pytest.mark.usefixtures("nothing_is_wrong")
def test_the_page_at_the_root_leads_to_the_document_where_a_call_is_made(browser, url):
    prefer(browser, "dark")
    browser.get(f"{url}/")
    assert "curl" in find(browser, "pre").text
    assert changes_with_the_scheme(browser, "pre", "color")
    prefer(browser, "dark")
    find(browser, "nav a").click()
    find(browser, ".opblock")
    assert browser.current_url == f"{url}/-/docs"
    assert browser.title == "Shapes"
    assert changes_with_the_scheme(browser, ".opblock", "background-color")
    find(browser, "#operations-default-post_judge .opblock-summary-control").click()
    wait_for(browser, "#operations-default-post_judge", "Judges comments.")
    find(browser, "#operations-default-post_judge .execute").click()
    answer = "#operations-default-post_judge .live-responses-table .response"
    wait_for(browser, answer, "200", '"author": "cod"')
