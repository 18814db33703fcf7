"""What proxies say of requests, and who is believed, on real sockets and in scopes."""

import json
from functools import partial

import h2.events
import pytest
from live_server import http2, live, read_until, request, upgrade
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

import shoal
from shoal.asgi.http_options import HttpOptions
from shoal.server.proxies import ProxyHeaders

ALL = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-prefix")


def scope_of(*headers, client=("10.0.0.1", 4000), kind="http", path="/x", **options):
    """The scope of a request that a proxy has sent, completed."""
    options = {"trusted_peers": ["10.0.0.0/8"], "proxy_headers": ALL, **options}
    scope = {
        "type": kind,
        "scheme": "ws" if kind == "websocket" else "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "client": client,
        "server": ("127.0.0.1", 8000),
        "headers": [(b"host", b"inner"), *headers],
    }
    before = dict(scope)
    completed = ProxyHeaders.of(HttpOptions(**options))
    if completed is not None:
        completed.complete(scope)
    return scope, {name for name in scope if scope[name] != before[name]}


def header(name, value):
    return name.lower().encode(), value.encode("latin-1")


forwarded_for = partial(header, "X-Forwarded-For")


def client_of(*values, **options):
    return scope_of(*map(forwarded_for, values), **options)[0]["client"]


@pytest.mark.parametrize(
    ("values", "client"),
    [
        (["1.2.3.4"], ("1.2.3.4", 0)),
        (["1.2.3.4:567"], ("1.2.3.4", 567)),
        (["2001:DB8::1"], ("2001:db8::1", 0)),
        (["[2001:db8::1]:80"], ("2001:db8::1", 80)),
        (["::ffff:1.2.3.4"], ("1.2.3.4", 0)),
        (["9.9.9.9, 1.2.3.4, 10.0.0.2"], ("1.2.3.4", 0)),
        (["9.9.9.9", "1.2.3.4", "10.0.0.2"], ("1.2.3.4", 0)),
        (["10.0.0.3, 10.0.0.2"], ("10.0.0.3", 0)),
        # who is behind the last proxy is not known
        (["1.2.3.4, unknown, 10.0.0.2"], ("10.0.0.2", 0)),
        (["1.2.3.4, "], ("10.0.0.1", 4000)),
        ([""], ("10.0.0.1", 4000)),
        (["1.2.3.4:99999"], ("10.0.0.1", 4000)),
        (["999.2.3.4"], ("10.0.0.1", 4000)),
        (["1.2.3.4\r\nx: y"], ("10.0.0.1", 4000)),
        (["1.2.3.4, " + "x" * 30_000], ("10.0.0.1", 4000)),
    ],
)
def test_the_last_address_that_is_no_proxy_is_the_client(values, client):
    assert client_of(*values) == client


def test_only_so_many_hops_are_looked_at():
    hops = ["10.0.0.9"] * 31
    assert client_of(",".join(["1.2.3.4", *hops])) == ("1.2.3.4", 0)
    assert client_of(",".join(["1.2.3.4", "10.0.0.9", *hops])) == ("10.0.0.9", 0)


def test_nobody_is_believed_unless_trusted():
    spoken = [header(name, "1.2.3.4") for name in ALL]
    assert scope_of(*spoken, trusted_peers=[])[1] == set()
    assert scope_of(*spoken, client=("11.0.0.1", 1))[1] == set()
    assert scope_of(*spoken, client=None)[1] == set()


@pytest.mark.parametrize(
    ("named", "peer", "is_trusted"),
    [
        ("unix", None, True),
        ("unix", "10.0.0.1", False),
        ("10.0.0.0/8", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.7", True),
        ("::ffff:10.0.0.0/104", "10.0.0.7", True),
        ("::ffff:0:0/96", "10.0.0.7", True),
        ("fe80::/10", "fe80::1%eth0", True),
    ],
)
def test_a_peer_is_trusted_by_any_form_of_its_address(named, peer, is_trusted):
    peer = None if peer is None else (peer, 1)
    found = client_of("1.2.3.4", client=peer, trusted_peers=[named])
    assert found == (("1.2.3.4", 0) if is_trusted else peer)


def test_headers_that_are_not_named_are_not_read():
    spoken = [header(name, "https") for name in ALL]
    scope, changed = scope_of(*spoken, proxy_headers=["X-Forwarded-Proto"])
    assert (changed, scope["scheme"]) == ({"scheme"}, "https")
    assert HttpOptions().proxy_headers == ALL[:2]


@pytest.mark.parametrize(
    ("kind", "given", "scheme"),
    [
        ("http", "https", "https"),
        ("http", "HTTPS", "https"),
        ("http", "http, https", "https"),
        ("http", "wss", "https"),
        ("http", "file", "http"),
        ("http", "https;", "http"),
        ("websocket", "https", "wss"),
        ("websocket", "wss", "wss"),
    ],
)
def test_the_scheme(kind, given, scheme):
    assert scope_of(header("x-forwarded-proto", given), kind=kind)[0]["scheme"] == scheme


@pytest.mark.parametrize(
    ("given", "server", "host"),
    [
        ("Example.com", ("example.com", 80), b"example.com"),
        ("a.test, example.com:8443", ("example.com", 8443), b"example.com:8443"),
        ("[2001:db8::1]:81", ("2001:db8::1", 81), b"[2001:db8::1]:81"),
        ("example.com/path", ("127.0.0.1", 8000), b"inner"),
        ("user@example.com", ("127.0.0.1", 8000), b"inner"),
        ("example.com:70000", ("127.0.0.1", 8000), b"inner"),
        ("", ("127.0.0.1", 8000), b"inner"),
    ],
)
def test_the_host(given, server, host):
    scope, _ = scope_of(header("x-forwarded-host", given))
    assert scope["server"] == server
    assert [value for name, value in scope["headers"] if name == b"host"] == [host]


def test_the_port_of_a_host_is_that_of_the_scheme():
    headers = [header("x-forwarded-host", "a.test"), header("x-forwarded-proto", "https")]
    assert scope_of(*headers)[0]["server"] == ("a.test", 443)


@pytest.mark.parametrize("given", ["/ml", "/ml/", "/a, /ml"])
def test_the_prefix(given):
    scope, _ = scope_of(header("x-forwarded-prefix", given), root_path="/other")
    paths = (scope["root_path"], scope["path"], scope["raw_path"])
    assert paths == ("/ml", "/ml/x", b"/ml/x")


@pytest.mark.parametrize("given", ["ml", "//evil.test", "/../x", "/a/./b", "/a b", "/\xe9", "/%2e"])
def test_a_malformed_prefix_counts_for_nothing(given):
    scope, _ = scope_of(header("x-forwarded-prefix", given), root_path="/other")
    assert scope["path"] == "/other/x"


def test_the_target_of_a_request_about_the_server_has_no_prefix():
    assert scope_of(path="*", root_path="/ml")[1] == set()


def test_what_it_remembers_is_bounded():
    proxies = ProxyHeaders(HttpOptions(trusted_peers=["10.0.0.0/8"]))
    for number in range(5_000):
        proxies._trusts(f"10.1.{number // 256}.{number % 256}")
    assert len(proxies._known) <= 1024


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trusted_peers": "10.0.0.1"}, "trusted_peers must be a list"),
        ({"trusted_peers": [1]}, "trusted_peers must be a list of texts; 1 is none"),
        ({"trusted_peers": ["*"]}, r'networks such as "10\.0\.0\.0/8".*not \'\*\''),
        ({"trusted_peers": ["10.0.0.1/8"]}, "has host bits set"),
        ({"proxy_headers": ["X-Real-IP"]}, "takes x-forwarded-for, .*, not 'x-real-ip'"),
        ({"proxy_headers": ["Forwarded"]}, "takes x-forwarded-for, .*, not 'forwarded'"),
        ({"root_path": "ml"}, "root_path must begin with a slash.*not 'ml'"),
        ({"root_path": "/ml//x"}, "root_path must begin with a slash"),
        ({"root_path": 1}, "root_path must be text"),
    ],
)
def test_a_wrong_option_is_named(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        HttpOptions(**options)


async def show(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        url = str(HTTPConnection(scope).url)
        await send({"type": "websocket.send", "text": f"{scope['client'][0]} {url}"})
        await send({"type": "websocket.close"})
        return
    seen = {
        "client": scope["client"],
        "url": str(HTTPConnection(scope).url),
        "base": str(HTTPConnection(scope).base_url),
    }
    await JSONResponse(seen)(scope, receive, send)


SPOKEN = (
    "X-Forwarded-For: 1.2.3.4",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: example.com",
    "X-Forwarded-Prefix: /ml",
)
TRUSTED = {"trusted_peers": ["127.0.0.1"], "proxy_headers": ALL}


@pytest.mark.real_time
@pytest.mark.parametrize("options", [{}, TRUSTED], ids=["nobody", "a proxy"])
async def test_an_application_sees_the_client_of_a_trusted_proxy(options, app):
    app.mount("/", show)
    async with live(app, **options) as server:
        answer = await server.talk(request("/x", headers=SPOKEN, close=True))
        websocket = await server.talk(upgrade(*SPOKEN))
        async with http2(server) as client:
            stream = client.ask(b"/x")
            await client.flush()
            data = await client.wait_for(h2.events.DataReceived, stream)
    seen = json.loads(answer.partition(b"\r\n\r\n")[2])
    if options:
        base = "https://example.com/ml/"
        assert seen == {"client": ["1.2.3.4", 0], "url": f"{base}x", "base": base}
        assert b"1.2.3.4 wss://" in websocket
    else:
        assert seen["client"][0] == "127.0.0.1"
        assert seen["url"] == "http://shoal.test/x"
        assert b"127.0.0.1 ws://" in websocket
    assert json.loads(data.data)["client"][0] == "127.0.0.1", "it was not forwarded"


@pytest.mark.real_time
@pytest.mark.parametrize("around", [(), [lambda app: app]], ids=["direct", "middleware"])
async def test_an_endpoint_is_found_below_the_prefix(around):
    app = shoal.App(middleware=around)
    seen = []

    @app.endpoint("/double")
    async def double(items: list[int]) -> list[int]:
        metadata = shoal.current_batch().requests[0].metadata
        seen.append((metadata["path"], metadata["headers"]["host"]))
        return [2 * item for item in items]

    async with live(app, root_path="/ml", **TRUSTED) as server, await server.connect() as client:
        for path in ("/double", "/-/healthz", "/ml/double"):
            await client.send_all(request(path, method="POST", body=b"21", headers=SPOKEN[2:3]))
            await read_until(client, b"42" if path == "/double" else b"not-")
        await client.send_all(request("/-/healthz"))
        await read_until(client, b"alive")
    assert seen == [("/ml/double", "example.com")]


@pytest.mark.real_time
async def test_the_access_log_has_the_client(logged):
    async with live(shoal.App(), access_log=True, **TRUSTED) as server:
        await server.talk(request("/-/healthz", headers=SPOKEN, close=True))
    [line] = logged()
    assert line["client"] == "1.2.3.4:0"
    assert line["path"] == "/ml/-/healthz"
