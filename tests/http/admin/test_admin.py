"""The admin API: its routes, its errors, and who may use it."""

import json
import re
from pathlib import Path

import anyio
import pytest

from serving.fake_client import FakeClient
from shoal.errors import NotAllowed, NotDurable, ReplicaDied, ReplicaNotStarted, WrongBatchSize
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminMount
from shoal.http.requests.exchange import JSON
from shoal.serving.imports import ImportRule
from shoal.testing.asgi import Call, ask, calling

pytestmark = pytest.mark.one_loop

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "server.md"
TOKEN = "correct-horse"
BEARER = ("authorization", f"Bearer {TOKEN}")
LOCAL = ("host", "localhost:8000")
CREATE = {"tag": "a", "definition": "models.text:Embed"}


def admin_app(client, *, token=None, allowed=("*",), **more):
    return AdminMount(AdminApi(client, token=token, allowed_modules=allowed, **more))


@pytest.fixture
def client():
    fake = FakeClient()
    fake.endpoints["e"] = {"route": "/e", "methods": ["GET"], "traffic": {}, "shadows": {}}
    return fake


async def talk(app, method, path, item=..., headers=(LOCAL,), **more):
    return await ask(app, f"/-/api/{path}", item, method=method, headers=headers, **more)


def kind_of(answer):
    return answer.json()["type"].removeprefix("urn:shoal:problem:")


def all_routes():
    return AdminApi(FakeClient(), token=None, allowed_modules=None).routes


def path_of(route):
    names = {"tag": "a", "backend": "a", "name": "e", "endpoint": "e"}
    return route.path.format_map(names)


async def test_a_backend_is_created_shown_changed_scaled_restarted_and_deleted(client):
    app = admin_app(client)
    created = {**CREATE, "init_args": [1], "init_kwargs": {"size": 2}, "config": {"retries": 1}}
    assert (await talk(app, "POST", "backends", created)).status == 200
    assert client.asked[-1] == ("create_backend", "a", "models.text:Embed", (1,), {"size": 2})
    await talk(app, "PATCH", "backends/a", {"user_config": {"threshold": 0.5}})
    shown = (await talk(app, "GET", "backends/a")).json()
    assert shown == {"retries": 1, "user_config": {"threshold": 0.5}}
    await talk(app, "POST", "backends/a/scale", {"num_replicas": 3})
    assert client.backends["a"].num_replicas == 3
    await talk(app, "POST", "backends/a/restart")
    assert client.asked[-1] == ("restart_backend", "a")
    assert (await talk(app, "GET", "backends")).json().keys() == {"a"}
    await talk(app, "DELETE", "backends/a?force=1")
    assert client.asked[-1] == ("delete_backend", "a", True)
    assert client.backends == {}


async def test_an_endpoint_is_created_given_traffic_and_shadows_shown_and_deleted(client):
    app = admin_app(client)
    created = {"name": "f", "backend": None, "route": "/f", "methods": ["POST"]}
    await talk(app, "POST", "endpoints", created)
    await talk(app, "PUT", "endpoints/f/traffic", {"a": 0.25, "b": 0.75})
    shown = (await talk(app, "GET", "endpoints/f")).json()
    traffic = {"a": 0.25, "b": 0.75}
    assert shown == {"route": "/f", "methods": ["POST"], "traffic": traffic, "shadows": {}}
    shadow = {"proportion": 0.5, "compare": "checks:alike"}
    await talk(app, "PUT", "endpoints/f/shadows/b", shadow)
    assert client.asked[-1] == ("shadow_traffic", "f", "b", 0.5, "checks:alike")
    assert (await talk(app, "GET", "endpoints")).json().keys() == {"e", "f"}
    await talk(app, "DELETE", "endpoints/f")
    assert client.endpoints.keys() == {"e"}


async def test_the_status_is_told(client):
    answer = await talk(admin_app(client), "GET", "status")
    assert answer.json()["backends"]["a"]["replicas"][0]["tag"] == "a#0"
    assert answer.headers["cache-control"] == "no-store"


async def test_a_call_passes_arguments_and_options_on(client):
    body = {"args": [1, "x"], "kwargs": {"k": None}, "options": {"shard_key": "u", "priority": 2}}
    answer = await talk(admin_app(client), "POST", "endpoints/e/call", body)
    assert answer.json() == {"args": [1, "x"], "kwargs": {"k": None}}
    assert client.asked[-1] == ("call", "e", (1, "x"), {"k": None}, body["options"])


async def test_a_call_is_answered_by_a_stream_where_that_is_accepted(client):
    client.results = [1, {"a": 2}, ...]
    lines = ("accept", "application/x-ndjson")
    answer = await talk(admin_app(client), "POST", "endpoints/e/call", {}, headers=(LOCAL, lines))
    assert answer.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    assert answer.body == b'{"item":1}\n{"item":{"a":2}}\n{"end":true}\n'
    client.results = [1, LookupError("no more")]
    answer = await talk(admin_app(client), "POST", "endpoints/e/call", {}, headers=(LOCAL, lines))
    last = json.loads(answer.body.splitlines()[-1])
    assert last["error"]["detail"] == "no more"
    assert last["error"]["like"] == "LookupError"


async def test_a_call_whose_client_leaves_is_cancelled(client):
    began, ended = anyio.Event(), anyio.Event()

    async def hang():
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    client.answer = hang
    call = Call(admin_app(client), "/-/api/endpoints/e/call", item={}, headers=(LOCAL,))
    async with calling(call):
        await began.wait()
        call.leave()
        await ended.wait()
        await call.returned.wait()
    assert call.status == 499


async def test_a_shutdown_goes_on_when_its_client_leaves(client):
    began, go_on, done = anyio.Event(), anyio.Event(), anyio.Event()

    async def shutdown():
        began.set()
        await go_on.wait()
        done.set()

    client.shutdown = shutdown
    call = Call(admin_app(client), "/-/api/shutdown", headers=(LOCAL,))
    async with calling(call):
        await began.wait()
        call.leave()
        await anyio.wait_all_tasks_blocked()
        assert not call.returned.is_set()
        go_on.set()
        await done.wait()
        await call.returned.wait()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotDurable("an object"), 409, "not-durable"),
        (ReplicaNotStarted("no weights"), 422, "replica-not-started"),
        (ReplicaDied("killed", signal="SIGKILL", last_lines="segv"), 502, "replica-died"),
        (NotAllowed("no"), 403, "not-allowed"),
        (TypeError("no number"), 422, "type-error"),
        (ValueError("too small"), 422, "value-error"),
        (WrongBatchSize("3, not 2", expected=2, got=3), 500, "wrong-batch-size"),
        (UnicodeError("bad text"), 500, "raised"),
    ],
)
async def test_what_a_verb_raises_is_a_problem_of_its_kind(client, error, status, kind):
    client.fails = error
    answer = await talk(admin_app(client), "POST", "backends", CREATE)
    assert (answer.status, kind_of(answer)) == (status, kind)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == str(error)


async def test_an_error_is_told_though_utf_8_has_no_form_for_its_text(client):
    client.fails = FileNotFoundError("no such file: \udcff.onnx")
    answer = await talk(admin_app(client), "POST", "backends", CREATE)
    assert answer.json()["detail"].endswith(r"\udcff.onnx")


async def test_a_result_that_json_has_not_is_said_to_be_one(client):
    async def answer():
        return object()

    client.answer = answer
    answer = await talk(admin_app(client), "POST", "endpoints/e/call", {})
    assert kind_of(answer) == "type-error"
    assert "can't be sent as JSON" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "item", "says"),
    [
        ("backends", [], "must be a JSON object"),
        ("backends", {"tag": "a"}, "must have 'definition'"),
        ("backends", {**CREATE, "pickle": "x"}, "can't have 'pickle'"),
        ("backends", {**CREATE, "definition": {"py": "x"}}, "must be an import path"),
        ("backends", {**CREATE, "init_args": {}}, "init_args must be an array"),
        ("backends", {**CREATE, "init_kwargs": []}, "init_kwargs must be an object"),
        ("backends", {**CREATE, "config": {"replicas": 1}}, "not an option"),
        (
            "endpoints/e/call",
            {"options": {"deadline": 1}},
            "can't have 'deadline'; write timeout_s",
        ),
        ("endpoints/e/call", {"options": []}, "options must be an object"),
    ],
)
async def test_a_body_of_the_wrong_shape_is_refused(client, path, item, says):
    answer = await talk(admin_app(client), "POST", path, item)
    assert (answer.status, kind_of(answer)) == (422, "type-error")
    assert says in answer.json()["detail"]
    assert client.backends == {}


@pytest.mark.parametrize("body", [b"", b"{", b'{"tag": NaN}', b"[" * 10_000])
async def test_a_body_that_is_not_json_is_refused(client, body):
    headers = (LOCAL, ("content-type", "application/json"))
    answer = await talk(admin_app(client), "POST", "backends", body=body, headers=headers)
    assert (answer.status, kind_of(answer)) == (400, "invalid-json")


async def test_a_body_in_another_encoding_is_told_the_right_one(client):
    headers = (LOCAL, ("content-type", "application/json"))
    body = '{"tag": "é"}'.encode("utf-16")
    answer = await talk(admin_app(client), "POST", "backends", body=body, headers=headers)
    assert "Send UTF-8 without a byte order mark." in answer.json()["detail"]


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_only_what_says_that_it_is_json_is_read(client, media_type):
    headers = [LOCAL, *([("content-type", media_type)] if media_type else [])]
    body = json.dumps(CREATE).encode()
    answer = await talk(admin_app(client), "POST", "backends", body=body, headers=headers)
    assert answer.status == 415


async def test_a_body_of_more_than_a_mebibyte_is_refused(client):
    answer = await talk(admin_app(client), "POST", "backends", {"tag": "x" * 2**20})
    assert (answer.status, kind_of(answer)) == (413, "body-too-large")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "nothing", 404),
        ("GET", "", 404),
        ("GET", "backends/", 404),
        ("PUT", "backends/a", 405),
        ("GET", "shutdown", 405),
        ("HEAD", "status", 405),
    ],
)
async def test_what_is_not_in_the_table_is_refused(client, method, path, status):
    answer = await talk(admin_app(client), method, path)
    assert answer.status == status
    if path == "backends/a":
        assert answer.headers["allow"] == "GET, PATCH, DELETE"


def test_the_reference_lists_all_routes_and_no_others():
    listed = set()
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if row := re.match(r"\| `([A-Z]+) ([a-z]+(?:/\S+)?)` \|", line):
            listed.add((row[1], re.sub(r"{\w+}", "{}", row[2])))
    assert listed == {(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in all_routes()}


async def test_an_unknown_query_is_refused(client):
    client.backends["a"] = None
    answer = await talk(admin_app(client), "DELETE", "backends/a?force=yes")
    assert answer.status == 422
    assert client.backends.keys() == {"a"}


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
async def test_each_route_needs_the_token(client, route):
    app = admin_app(client, token=TOKEN)
    answer = await talk(app, route.method, path_of(route), {})
    assert (answer.status, kind_of(answer)) == (401, "wrong-token")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert client.asked == []
    answer = await talk(app, route.method, path_of(route), {}, headers=(LOCAL, BEARER))
    assert answer.status != 401


@pytest.mark.parametrize(
    "given",
    [
        *([], [""], ["Bearer"], ["Bearer wrong"], ["Bearer \u00fc"], [f"Basic {TOKEN}"], [TOKEN]),
        *([f"Bearer {TOKEN}x"], [f"Bearer {TOKEN[:-1]}"], [f"Bearer {TOKEN}"] * 2),
    ],
    ids=str,
)
async def test_a_wrong_token_is_refused(client, given):
    headers = (LOCAL, *(("authorization", one) for one in given))
    for path in ("status", "nothing"):
        answer = await talk(admin_app(client, token=TOKEN), "GET", path, headers=headers)
        assert answer.status == 401
    assert client.asked == []


async def test_a_request_without_the_token_is_refused_before_its_body_has_come(client):
    call = Call(admin_app(client, token=TOKEN), "/-/api/backends", headers=(LOCAL,), whole=False)
    async with calling(call):
        await call.returned.wait()
    assert call.answer.status == 401
    assert not call.is_listening


async def test_the_comparison_of_tokens_takes_constant_time(client, monkeypatch):
    compared = []

    def compare(given, wanted):
        compared.append((given, wanted))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    answer = await talk(admin_app(client, token=TOKEN), "GET", "status", headers=(LOCAL, BEARER))
    assert answer.status == 401
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


@pytest.mark.parametrize("token", ["", "with space", "\u00fc", "a\nb"])
def test_a_token_that_no_header_can_hold_is_refused(client, token):
    with pytest.raises(ValueError, match="printable ASCII"):
        AdminApi(client, token=token, allowed_modules=None)


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_a_page_of_a_browser_can_change_nothing(client, route, token):
    app = admin_app(client, token=token)
    headers = (LOCAL, BEARER, ("origin", "http://localhost:8000"))
    answer = await talk(app, route.method, path_of(route), {}, headers=headers)
    if route.method == "GET":
        assert answer.status != 403
    else:
        assert (answer.status, kind_of(answer)) == (403, "cross-origin")
        assert client.asked == []


@pytest.mark.parametrize(
    "hosts",
    [
        *(["evil.test"], ["localhost.evil.test"], ["127.0.0.1.evil.test"]),
        *(["localhost:80@evil.test"], ["[::2]:80"], ["10.0.0.1"], ["::1"], [""], []),
        ["localhost:8000", "evil.test"],
    ],
    ids=str,
)
async def test_without_a_token_other_host_names_are_refused(client, hosts):
    headers = [("host", host) for host in hosts]
    answer = await talk(admin_app(client), "GET", "status", headers=headers)
    assert (answer.status, kind_of(answer)) == (421, "misdirected")
    assert client.asked == []


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:80", "localhost.:80"),
        *("127.0.0.1:8000", "127.1.2.3", "[::1]", "[::1]:80"),
    ],
)
async def test_without_a_token_loopback_names_are_accepted(client, host):
    app = admin_app(client)
    assert (await talk(app, "GET", "status", headers=[("host", host)])).status == 200


async def test_with_a_token_any_host_name_is_accepted(client):
    headers = (("host", "gateway.test"), BEARER)
    answer = await talk(admin_app(client, token=TOKEN), "GET", "status", headers=headers)
    assert answer.status == 200


@pytest.mark.parametrize(
    "header", ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"]
)
async def test_without_a_token_a_request_through_a_proxy_is_refused(client, header):
    for value in ("for=192.0.2.1", ""):
        answer = await talk(admin_app(client), "GET", "status", headers=(LOCAL, (header, value)))
        assert (answer.status, kind_of(answer)) == (403, "forwarded")
    assert client.asked == []
    headers = (LOCAL, (header, "192.0.2.1"), BEARER)
    answer = await talk(admin_app(client, token=TOKEN), "GET", "status", headers=headers)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("allowed", "path", "is_allowed"),
    [
        (None, "models:Embed", False),
        ([], "models:Embed", False),
        (["models"], "models:Embed", True),
        (["models"], "models.Embed", True),
        (["models"], "models.text:Embed", True),
        (["models.text"], "models:Embed", False),
        (["models"], "models_evil:Embed", False),
        (["models"], "os:system", False),
        (["models"], "models:os.system", False),
        (["models"], "models:__setattr__", False),
        (["models"], "models:_private", False),
        (["models", "other"], "other.a:f", True),
        (["*"], "os:system", True),
        (["*"], "models:Outer.Inner", True),
    ],
)
async def test_code_is_imported_from_allowed_modules_only(client, allowed, path, is_allowed):
    app = admin_app(client, token=TOKEN, allowed=allowed)
    created = {**CREATE, "definition": path}
    answer = await talk(app, "POST", "backends", created, headers=(LOCAL, BEARER))
    assert (answer.status == 200) == is_allowed
    if not is_allowed:
        assert kind_of(answer) == "not-allowed"
        assert client.asked == []


@pytest.mark.parametrize(
    "config",
    [
        {"placement": "evil.placements:Mine"},
        {"batch_size_fn": "os:system"},
        {"policy": "os.system"},
        {"autoscaling": {"min_replicas": ["os:system"]}},
        {"python": "/tmp/python"},
        {"env": {"LD_PRELOAD": "/tmp/evil.so"}},
        {"ray_options": {"runtime_env": {"pip": ["evil"]}}},
        {"ray_actor_options": {"runtime_env": {}}},
        {"placement_options": {"python": "/tmp/python"}},
        {"placement_options": {"pools": [{"python": "/tmp/python"}]}},
        {"placement_options": {"env": {"LD_PRELOAD": "/tmp/evil.so"}}},
        {"placement_options": {"ray_options": {"runtime_env": {}}}},
        {"placement_options": {"user_config": {"loader": "os:system"}}},
    ],
    ids=str,
)
async def test_a_config_imports_nothing_else_either(client, config):
    client.backends["a"] = None
    app = admin_app(client, token=TOKEN, allowed=["models"])
    for method, path, body in [
        ("POST", "backends", {**CREATE, "tag": "b", "config": config}),
        ("PATCH", "backends/a", config),
    ]:
        answer = await talk(app, method, path, body, headers=(LOCAL, BEARER))
        assert (answer.status, kind_of(answer)) == (403, "not-allowed")
    assert client.asked == []


@pytest.mark.parametrize(
    "placed",
    [
        {"placement": "process", "python": None, "env": {}},
        {
            "placement": "models:Pool",
            "placement_options": {"loader": "models.text:cost", "env": {}, "slots": 2},
        },
    ],
    ids=str,
)
async def test_plain_options_need_no_leave(client, placed):
    plain = {"overload": "reject", "user_config": {"note": "os:system"}}
    config = {**placed, **plain, "batch_size_fn": "models.text:cost"}
    app = admin_app(client, token=TOKEN, allowed=["models"])
    created = {**CREATE, "config": config}
    answer = await talk(app, "POST", "backends", created, headers=(LOCAL, BEARER))
    assert answer.status == 200, answer.json()


@pytest.mark.parametrize(
    ("allowed", "wrong"), [("models", TypeError), (["a/b"], ValueError), ([""], ValueError)]
)
def test_modules_are_given_as_a_list_of_names(allowed, wrong):
    with pytest.raises(wrong):
        ImportRule(allowed)


async def test_an_admin_listener_has_the_application_behind_it(client):
    async def app(scope, receive, send):
        assert scope["path"] == "/-/readyz"
        headers = [(b"content-type", JSON)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'"ready"'})

    behind = AdminMount(AdminApi(client, token=None, allowed_modules=None), app)
    assert (await ask(behind, "/-/readyz", method="GET")).json() == "ready"
    assert (await talk(behind, "GET", "status")).status == 200


async def test_an_admin_listener_with_nothing_behind_it_has_nothing_else(client):
    assert (await ask(admin_app(client), "/-/readyz", method="GET")).status == 404


async def test_an_admin_listener_may_be_mounted_below_a_prefix(client):
    answer = await ask(
        admin_app(client), "/ml/-/api/status", method="GET", headers=(LOCAL,), root_path="/ml"
    )
    assert answer.status == 200
