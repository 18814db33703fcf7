"""The dashboard's page, its files and its feed, and who may see it."""

import base64
import gzip
import hashlib
import json
import re
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from types import SimpleNamespace
from urllib.parse import quote

import anyio
import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import shoal
from shoal.core.request import DispatchReason
from shoal.http.dashboard.dashboard import DASHBOARD, FILES
from shoal.http.dashboard.feed import FRAME_S, MOST_PUBLIC, MOST_SHOWN, MOST_VIEWERS
from shoal.http.requests.disconnects import UNNOTICED_S
from shoal.testing import settle
from shoal.testing.asgi import Call, ask, calling
from time_limits import HANG_S

STATIC = files("shoal.http.dashboard") / "static"
FEED = f"{DASHBOARD}/feed"
PATHS = [DASHBOARD, FEED, *(f"{DASHBOARD}/{name}" for name in FILES)]
TOKEN = "wanted-token"


async def slow(items: list[int]) -> list[int]:
    await anyio.sleep(1.5)
    if 13 in items:
        raise LookupError("a secret")
    return items


async def write(batch: shoal.OpenBatch[int, int]) -> None:
    while await batch.join():
        while batch.active:
            await anyio.sleep(5)
            for request in batch.active:
                request.finish()
            batch.join_nowait()


@pytest.fixture
def app():
    app = shoal.App(dashboard=True, title="<Fish> & 'chips'")
    app.endpoint("/slow", name="slow", max_batch_size=4, batch_wait_timeout_s=0.25)(slow)
    app.endpoint("/write", name="write", fill="continuous", streams=True, max_batch_size=4)(write)
    return app


def viewer(app):
    return Call(app, FEED, method="GET")


@asynccontextmanager
async def watched(app):
    """A viewer that has had its first message."""
    call = viewer(app)
    async with calling(call):
        await call.until(lambda call: call.body)
        yield call


def messages_of(call):
    return [json.loads(one.removeprefix(b"data: ")) for one in call.body.split(b"\n\n") if one]


def lane_of(messages, name):
    lanes = [lane for message in messages for lane in message["lanes"] if lane["name"] == name]
    return [row for lane in lanes for row in lane["rows"]], lanes[-1]["now"]


def state_of(messages):
    return [message["state"] for message in messages if "state" in message][-1]


async def test_the_page_loads_only_what_is_in_the_package(app):
    page = await ask(app, DASHBOARD, method="GET")
    text = page.body.decode()
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "&lt;Fish&gt; &amp; &#x27;chips&#x27;" in text
    assert "<Fish>" not in text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"https?://|<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", text)
    loaded = set(re.findall(r'(?:src|href)="dashboard/([^"]+)"', text))
    for name in FILES:
        assert (await ask(app, f"{DASHBOARD}/{name}", method="GET")).status == 200
        script = (STATIC / name).read_text() if name[0] != "u" else ""
        loaded |= set(re.findall(r'from "\./([^"]+)"', script))
        assert "innerHTML" not in script
    assert loaded == set(FILES)
    assert (await ask(app, f"{DASHBOARD}/README.md", method="GET")).status == 404
    assert (await ask(app, DASHBOARD, method="POST")).status == 405


async def test_it_works_below_a_prefix(app):
    site = Starlette(lifespan=app.lifespan, routes=[Mount("/ml", app=app)])
    assert (await ask(site, f"/ml{DASHBOARD}", method="GET")).status == 200
    assert (await ask(site, f"/ml{DASHBOARD}/feed.js", method="GET")).status == 200


@pytest.mark.parametrize("reason", DispatchReason)
def test_each_reason_has_a_colour_in_light_and_dark_and_words(reason):
    assert (STATIC / "dashboard.css").read_text().count(f"\n  --{reason}: #") == 1
    assert (STATIC / "dashboard.css").read_text().count(f"\n    --{reason}: #") == 1
    assert f'\n  {reason}: "' in (STATIC / "timeline.js").read_text()


@pytest.mark.parametrize("name", ["uPlot.iife.min.js.gz", "uPlot.min.css"])
def test_the_files_of_others_are_what_their_list_says(name):
    body = (STATIC / name).read_bytes()
    body = gzip.decompress(body) if name.endswith(".gz") else body
    listed = (STATIC / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}` | `{hashlib.sha256(body).hexdigest()}` |" in listed
    assert "Permission is hereby granted" in (STATIC / "LICENSE-uplot").read_text(encoding="utf-8")


async def test_a_viewer_is_told_what_batches_do(app):
    async with app.lifespan(), watched(app) as watching:
        calls = [Call(app, "/slow", item=item) for item in (1, 2, 3)]
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run)
            await anyio.sleep(1)
            ((number, reason, size, *_),) = lane_of(messages_of(watching), "slow")[1]
            assert (number, reason, size) == (1, "timer", 3)
        await anyio.sleep(2.2)
        assert watching.headers["content-type"] == "text/event-stream; charset=utf-8"
        messages = messages_of(watching)
        (row,), now = lane_of(messages, "slow")
        _, number, reason, size, limit, _, began, ended, waited, failed, left, error = row
        assert (number, reason, size, limit, failed, left, error) == (1, "timer", 3, 4, 0, 0, None)
        assert ended - began == pytest.approx(1.5)
        assert waited == pytest.approx(0.25)
        assert now == []
        samples = [sample for message in messages for sample in message["samples"]]
        assert [sample["number"] for sample in samples] == list(range(1, len(samples) + 1))
        finished = sum(sample["batchers"]["slow"]["finished"] for sample in samples)
        assert finished == pytest.approx(3, abs=0.3)
        state = state_of(messages)
        assert [one["tag"] for one in state["backends"]] == ["slow", "write"]
        assert state["backends"][0]["requests"] == 3
        assert state["backends"][0]["replicas"][0]["state"] == "ready"
        assert state["endpoints"][0]["traffic"] == {"slow": 1}
        assert len({message["run"] for message in messages}) == 1


async def test_an_open_batch_is_shown_by_its_places_and_streams_are_counted(app):
    watching, call = viewer(app), Call(app, "/write", item=1)
    async with app.lifespan(), calling(watching):
        await watching.until(lambda one: one.body)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run)
            await anyio.sleep(2.5)
            messages = messages_of(watching)
            rows, ((batch, place, *_, name),) = lane_of(messages, "write")
            assert (rows, batch, place) == ([], 1, 0)
            assert messages[-1]["lanes"][1]["open"]
            samples = [sample for message in messages for sample in message["samples"]]
            assert samples[-1]["all"]["streams"] == 1
            assert state_of(messages)["backends"][1]["ongoing"] == 1
        await anyio.sleep(2 * FRAME_S)
        ((_, batch, place, *_, outcome, found),), now = lane_of(messages_of(watching), "write")
        assert (batch, place, outcome, now) == (1, 0, "finished", [])
        assert found == name == call.headers["x-request-id"]


async def test_failures_are_noted_before_anybody_watches_and_without_their_texts(app):
    async with app.lifespan():
        failed = await ask(app, "/slow", item=13)
        assert failed.status == 500
        async with watched(app) as watching:
            (failure,) = state_of(messages_of(watching))["failures"]
    assert failure.pop("at") <= anyio.current_time()
    ids = [failed.headers["x-request-id"]]
    assert failure == {
        "batcher": "slow",
        "batch": 1,
        "error": "LookupError",
        "count": 1,
        "ids": ids,
    }
    assert b"secret" not in watching.body


async def counted(app):
    """The outcomes that requests to no endpoint are counted by, and how many of each."""
    text = (await ask(app, "/-/metrics", method="GET")).body.decode()
    series = r'^shoal_request_seconds_count\{endpoint="-",outcome="(\w+)",protocol="other"\} (\S+)'
    return dict(re.findall(series, text, re.MULTILINE))


async def test_a_viewer_counts_as_a_request_only_if_it_is_refused(app, monkeypatch):
    monkeypatch.setattr("shoal.http.dashboard.feed.MOST_PUBLIC", 1)
    async with app.lifespan():
        async with watched(app) as watching:
            assert (await ask(app, f"{DASHBOARD}/feed", method="GET")).status == 503
            watching.leave()
            await watching.returned.wait()
        assert await counted(app) == {"unavailable": "1.0"}
        async with watched(app) as ended:
            app.begin_drain()
            await ended.returned.wait()
        assert await counted(app) == {"unavailable": "1.0", "ok": "1.0"}  # that of the metrics


async def test_nothing_is_observed_while_nobody_watches(app):
    first, second = viewer(app), viewer(app)
    async with app.lifespan(), anyio.create_task_group() as tasks:
        observers = app.controller.observers
        assert observers.all == ()
        tasks.start_soon(first.run)
        tasks.start_soon(second.run)
        await second.until(lambda call: call.body)
        assert len(observers.all) == 1
        first.leave()
        await anyio.sleep(UNNOTICED_S + 0.01)
        assert len(observers.all) == 1
        second.leave()
        await anyio.sleep(UNNOTICED_S + 0.01)
        assert observers.all == ()


async def test_viewers_share_what_is_computed(app, monkeypatch):
    written = []

    def dumps(value):
        written.append(value)
        return orjson.dumps(value)

    monkeypatch.setattr(
        "shoal.http.dashboard.feed.orjson", SimpleNamespace(dumps=dumps, Fragment=orjson.Fragment)
    )
    watching = [viewer(app) for _ in range(5)]
    async with app.lifespan(), calling(*watching):
        await anyio.sleep(3.1)
    told = [messages_of(one) for one in watching]
    assert len(told[0]) >= 12
    assert told == [told[0]] * 5
    states = sum("state" in message for message in told[0])
    assert len(written) == len(told[0]) + states


async def test_a_viewer_beyond_the_limit_is_refused_until_another_leaves(app):
    watching = [viewer(app) for _ in range(MOST_PUBLIC)]
    async with app.lifespan(), calling(*watching):
        await settle()
        refused = await ask(app, FEED, method="GET")
        assert refused.status == 503
        assert refused.json()["type"] == "urn:shoal:problem:too-many-viewers"
        assert refused.headers["retry-after"] == "1"
        watching[0].leave()
        await anyio.sleep(UNNOTICED_S + 0.01)
        async with watched(app) as late:
            assert late.status == 200


async def test_a_viewer_that_does_not_read_skips_and_is_disconnected(app):
    slow_one, quick = viewer(app), viewer(app)
    async with app.lifespan(), calling(quick, slow_one):
        await slow_one.until(lambda call: call.body)
        slow_one.stop_reading()
        await anyio.sleep(5)
        slow_one.read()
        await anyio.sleep(1.1)
        told = messages_of(slow_one)
        assert len(told) < len(messages_of(quick)) / 2
        numbers = [sample["number"] for message in told for sample in message["samples"]]
        assert numbers == list(range(1, numbers[-1] + 1))  # nothing twice, nothing missing
        slow_one.stop_reading()
        await anyio.sleep(11)
        assert slow_one.returned.is_set()


async def test_a_deleted_backend_disappears(app):
    watching = viewer(app)
    async with app.lifespan(), calling(watching):
        client = app.controller
        await client.create_backend("gone", slow)
        await anyio.sleep(1.5)
        assert "gone" in {one["tag"] for one in state_of(messages_of(watching))["backends"]}
        async with anyio.create_task_group() as tasks:
            await client.create_endpoint("gone", backend="gone")
            tasks.start_soon((await client.get_handle("gone")).call, 1)
            await anyio.sleep(2)
        assert len(lane_of(messages_of(watching), "gone")[0]) == 1
        await client.delete_endpoint("gone")
        await client.delete_backend("gone")
        await anyio.sleep(1.5)
        last = messages_of(watching)[-1]
        assert "gone" not in {lane["name"] for lane in last["lanes"]}
        assert "gone" not in {one["tag"] for one in state_of(messages_of(watching))["backends"]}
        await client.create_backend("gone", slow)
        await anyio.sleep(1.5)
        async with watched(app) as late:
            assert lane_of(messages_of(late), "gone") == ([], [])


async def test_what_is_shown_is_bounded():
    app = shoal.App(dashboard=True)
    for number in range(MOST_SHOWN + 3):
        app.endpoint(f"/{number}", name=f"e{number}")(slow)
    async with app.lifespan(), watched(app) as watching:
        (message,) = messages_of(watching)
    assert len(message["lanes"]) == MOST_SHOWN
    assert len(state_of([message])["backends"]) == MOST_SHOWN
    assert state_of([message])["hidden"] == 6


async def test_the_feed_ends_when_the_server_drains(app):
    watching = viewer(app)
    async with app.lifespan(), anyio.create_task_group() as tasks:
        tasks.start_soon(watching.run)
        await watching.until(lambda call: call.body)
        app.begin_drain()
        with anyio.fail_after(2 * FRAME_S):
            await watching.returned.wait()
        assert watching.is_complete
        assert (await ask(app, FEED, method="GET")).status == 503


async def test_the_feed_needs_an_open_application_and_its_headers_are_for_no_viewer(app):
    assert (await ask(app, DASHBOARD, method="GET")).status == 200
    assert (await ask(app, FEED, method="GET")).status == 503
    async with app.lifespan():
        answer = await ask(app, FEED, method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dashboard", "wanted"), [(None, (403, True)), (False, (404, False))])
async def test_without_permission_it_is_not_at_the_public_address(dashboard, wanted, path):
    app = shoal.App(dashboard=dashboard)  # another server than this package's
    async with app.lifespan():
        answer = await ask(app, path, method="GET")
    assert (answer.status, b"the admin socket (--admin-socket)" in answer.body) == wanted


@pytest.fixture
def socket(tmp_path):
    return str(tmp_path / "shoal.sock")


@pytest.mark.real_time
async def test_at_a_loopback_address_it_is_for_this_machine(socket):
    async with (
        shoal.start(http={"port": 0}) as client,
        httpx.AsyncClient(base_url=client.url) as http,
    ):
        assert (await http.get(DASHBOARD)).status_code == 200
        async with http.stream("GET", FEED) as feed:
            assert feed.status_code == 200
        for relayed in ({"x-forwarded-for": "203.0.113.7"}, {"host": "fish.test"}):
            answer = await http.get(DASHBOARD, headers=relayed)
            assert answer.status_code in (403, 421)


@pytest.mark.real_time
async def test_at_other_addresses_it_is_for_those_with_the_token():
    async with shoal.start(http={"host": "0.0.0.0", "port": 0, "token": TOKEN}) as client:
        url = re.sub(r"//.*:", "//127.0.0.1:", client.url)
        async with httpx.AsyncClient(base_url=url) as http:
            for path in PATHS:
                refused = await http.get(path)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == 'Basic realm="shoal"'
            wrong = [("any", "other"), ("any", ""), (TOKEN, "x")]
            for credentials in wrong:
                assert (await http.get(DASHBOARD, auth=credentials)).status_code == 401
            malformed = {"authorization": "Basic !"}
            assert (await http.get(DASHBOARD, headers=malformed)).status_code == 401
            bearer = {"authorization": f"Bearer {TOKEN}"}
            assert (await http.get(DASHBOARD, headers=bearer)).status_code == 200
            assert (await http.get(DASHBOARD, auth=("any", TOKEN))).status_code == 200
            assert (await http.post(DASHBOARD, auth=("any", TOKEN))).status_code == 405
            # A browser sends it unasked, so it opens nothing else.
            status = "/-/api/status"
            assert (await http.get(status, headers=bearer)).status_code == 200
            assert (await http.get(status, auth=("any", TOKEN))).status_code == 401
            basic = base64.b64encode(TOKEN.encode()).decode()
            given = {"authorization": f"Basic {basic}"}
            assert (await http.get(DASHBOARD, headers=given)).status_code == 401


@pytest.mark.real_time
async def test_at_other_addresses_without_a_token_it_is_not_there():
    async with shoal.start(http={"host": "0.0.0.0", "port": 0}) as client:
        url = re.sub(r"//.*:", "//127.0.0.1:", client.url)
        async with httpx.AsyncClient(base_url=url) as http:
            assert {(await http.get(path)).status_code for path in PATHS} == {403}


@pytest.mark.real_time
@pytest.mark.parametrize("dashboard", [None, False])
async def test_an_admin_socket_always_has_it(dashboard, socket):
    options = {"port": 0, "host": "0.0.0.0", "admin_socket": socket, "dashboard": dashboard}
    async with shoal.start(http=options):
        transport = httpx.AsyncHTTPTransport(uds=socket)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for path in PATHS:
                if path != FEED:
                    assert (await http.get(path)).status_code == 200
            async with http.stream("GET", FEED) as feed:
                assert feed.status_code == 200
            assert (await http.get(f"{DASHBOARD}/{quote('../page.py')}")).status_code == 404


@pytest.mark.real_time
async def test_strangers_do_not_take_the_places_of_operators(socket):
    options = {"port": 0, "admin_socket": socket, "dashboard": False}
    transport = httpx.AsyncHTTPTransport(uds=socket)
    async with (
        shoal.start(http=options),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        AsyncExitStack() as stack,
    ):
        statuses = [
            (await stack.enter_async_context(http.stream("GET", FEED))).status_code
            for _ in range(MOST_VIEWERS + 1)
        ]
    assert MOST_PUBLIC < MOST_VIEWERS
    assert statuses == [200] * MOST_VIEWERS + [503]


@pytest.mark.real_time
async def test_the_server_ends_although_somebody_watches():
    with anyio.fail_after(HANG_S):
        async with (
            shoal.start(http={"port": 0}) as client,
            httpx.AsyncClient(base_url=client.url) as http,
            http.stream("GET", FEED) as feed,
            anyio.create_task_group() as tasks,
        ):
            lines = feed.aiter_lines()
            await anext(lines)
            tasks.start_soon(client.shutdown)
            async for _ in lines:
                pass
