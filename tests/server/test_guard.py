"""Which hosts and origins a server answers for, on a real socket."""

import tracemalloc

import pytest
from live_server import live, request
from server_in_memory import serving

import shoal
from shoal.asgi.headers import BadRequest, RequestGuard
from shoal.asgi.http_options import HttpOptions
from shoal.testing import settle
from shoal.testing.asgi import Call
from socket_in_memory import Socket

LOCAL = ("127.0.0.1", 8000)
PUBLIC = ("192.0.2.1", 80)


def status(name, method, host, origin=None, **options):
    """The status that a request is refused with; None if it is not."""
    try:
        RequestGuard(HttpOptions(**options), name).check(method, host, origin)
    except BadRequest as refusal:
        return refusal.status
    return None


@pytest.mark.parametrize(
    "host", [b"localhost", b"LOCALHOST:8000", b"127.0.0.1", b"127.0.0.1:1", b"[::1]", b"[::1]:8000"]
)
@pytest.mark.parametrize("name", [LOCAL, ("::1", 8000, 0, 0)])
def test_a_loopback_address_answers_for_loopback_names(name, host):
    assert status(name, "GET", host) is None


@pytest.mark.parametrize(
    "host", [b"evil.test", b"evil.test:8000", b"localhost.evil.test", b"", b"[::2]", b"127.0.0.1.x"]
)
def test_a_loopback_address_answers_for_no_other(host):
    assert status(LOCAL, "GET", host) == 421
    assert status(PUBLIC, "GET", host) is None


@pytest.mark.parametrize(
    "host",
    [b"localhost:80@evil.test", b"localhost:x", b"[::1]evil.test", b"[::1]:80@evil", b"[::1"],
)
def test_an_allowed_name_with_something_else_behind_it_is_another_host(host):
    assert status(LOCAL, "GET", host) == 421


@pytest.mark.parametrize(
    ("name", "host", "origin"),
    [
        (PUBLIC, b"%d" + b"a" * 2**14, None),
        (LOCAL, b"localhost:%d" + b"0" * 2**14, None),
        (LOCAL, b"localhost:%d", b"a" * 2**14 + b"://localhost:%d"),
    ],
)
def test_long_hosts_and_origins_are_not_kept(name, host, origin):
    guard = RequestGuard(HttpOptions(), name)
    tracemalloc.start()
    try:
        for number in range(64):
            guard.check("POST", host % number, origin and origin % number)
        assert tracemalloc.get_traced_memory()[0] < 2**17
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ([(b"host", b"localhost"), (b"host", b"localhost")], None),
        ([(b"host", b"localhost"), (b"host", b"evil.test")], 421),
        ([(b"host", b"evil.test"), (b"host", b"localhost")], 421),
        (
            [
                (b"host", b"localhost"),
                (b"origin", b"http://evil"),
                (b"origin", b"http://localhost"),
            ],
            403,
        ),
    ],
)
def test_headers_that_contradict_each_other_are_refused(headers, refused):
    guard = RequestGuard(HttpOptions(), LOCAL)
    if refused is None:
        guard.check_headers("POST", headers)
        return
    with pytest.raises(BadRequest) as raised:
        guard.check_headers("POST", headers)
    assert raised.value.status == refused


@pytest.mark.parametrize("name", [LOCAL, PUBLIC])
def test_named_hosts_are_answered_for_at_any_address(name):
    allowed = {"allowed_hosts": ["Api.Example.com"]}
    assert status(name, "GET", b"api.example.com:443", **allowed) is None
    assert status(name, "GET", b"other.example.com", **allowed) == 421
    assert status(name, "GET", b"anything", allowed_hosts=["*"]) is None


@pytest.mark.parametrize("host", [b"localhost:8000", b"127.0.0.1", b"[::1]"])
def test_named_hosts_take_no_loopback_names_away(host):
    assert status(LOCAL, "GET", host, allowed_hosts=["api.example.com"]) is None
    assert status(PUBLIC, "GET", host, allowed_hosts=["api.example.com"]) == 421


@pytest.mark.parametrize("name", [LOCAL, "/run/x"])
def test_behind_named_hosts_a_local_host_is_no_proof(name):
    # A proxy that forwards the hosts of its clients forwards a forged one as well.
    assert not RequestGuard(HttpOptions(allowed_hosts=["api.example.com"]), name).is_local
    for allowed in ([], ["localhost"], ["*"]):
        assert RequestGuard(HttpOptions(allowed_hosts=allowed), name).is_local


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", ""])
def test_another_origin_may_change_nothing(method):
    assert status(LOCAL, method, b"localhost", b"https://evil.test") == 403
    assert status(LOCAL, method, b"localhost", b"null") == 403
    assert status(LOCAL, method, b"localhost:8000", b"http://localhost:9000") == 403
    assert status(LOCAL, method, b"localhost:8000", b"http://localhost:8000") is None
    assert status(LOCAL, method, b"localhost") is None
    assert status(PUBLIC, method, b"a.test", b"https://evil.test") is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_another_origin_may_ask(method):
    assert status(LOCAL, method, b"localhost", b"https://evil.test") is None


def test_named_origins_may_do_all():
    allowed = {"allowed_origins": ["https://Page.test/"]}
    for name in (LOCAL, PUBLIC):
        assert status(name, "POST", b"localhost", b"https://page.test", **allowed) is None
        assert status(name, "POST", b"localhost", b"http://page.test", **allowed) == 403
    assert status(LOCAL, "POST", b"localhost", b"https://a.test", allowed_origins=["*"]) is None


def test_a_unix_socket_refuses_nothing():
    assert status("/run/x", "POST", b"evil.test", b"https://other.test") is None
    assert status(LOCAL, "POST", b"evil.test", b"https://other.test") == 421


@pytest.mark.real_time
async def test_a_foreign_host_is_refused_before_the_application(echo):
    async with live(echo, allowed_hosts=["localhost"]) as server:
        answer = await server.talk(request("/"))
    assert answer.startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
    assert b"\r\ncontent-type: application/problem+json\r\n" in answer
    assert b"can allow more with allowed_hosts (--allow-host)" in answer
    assert not echo.entered.is_set()


@pytest.mark.parametrize(
    ("heads", "statuses"),
    [
        (["1.1|Host: localhost", "1.1|Host: localhost"], [404, 404]),
        (["1.1|Host: localhost", "1.1|Host: evil.test"], [404, 421]),
        (["1.1|Host: localhost", "1.1|Host: localhost|Origin: http://evil.test"], [404, 403]),
        (["1.1|Host: evil.test"], [421]),
        # An empty host is none of those allowed, and neither is none at all.
        (["1.1|Host:"], [421]),
        (["1.0"], [421]),
    ],
)
async def test_each_host_of_a_connection_must_be_allowed(heads, statuses):
    async with serving(shoal.App()) as server:
        server.shared.guard = RequestGuard(HttpOptions(), ("127.0.0.1", 80))
        client = server.connect()
        for head in heads:
            version, *fields = head.split("|")
            client.say("\r\n".join([f"POST /x HTTP/{version}", *fields, "", ""]).encode())
            await settle()
        assert client.statuses == statuses


@pytest.mark.real_time
async def test_the_host_of_a_url_counts(echo):
    async with live(echo, allowed_hosts=["shoal.test"]) as server:
        assert (await server.talk(request("http://evil.test/"))).startswith(b"HTTP/1.1 421")
    assert not echo.entered.is_set()


def test_a_wrong_list_is_named():
    with pytest.raises(TypeError, match="allowed_hosts must be a list, not 'localhost'"):
        HttpOptions(allowed_hosts="localhost")


WHY_NO_HOST = 'a host is a name in ASCII or an address, without a port, such as "example.com"'
WHY_NO_ORIGIN = "an origin is a scheme, a host in ASCII, and a port if it is not the scheme's"
NO_HOSTS = [
    *("localhost:5173", "x:8000", "[::1]:8000", "https://example.com", "*.example.com"),
    *("münchen.de", "", "a b"),
]
NO_ORIGINS = [
    *("chrome-extension://*", "https://*.example.com", "localhost:5173", "example.com"),
    *("https://example.com/path", "https://user@example.com", "https://example.com:443"),
    *("http://[::1]:80", "https://münchen.de", ""),
]


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        *[("allowed_hosts", host, WHY_NO_HOST) for host in NO_HOSTS],
        *[("allowed_origins", origin, WHY_NO_ORIGIN) for origin in NO_ORIGINS],
    ],
)
def test_a_name_that_can_never_match_is_refused_when_it_is_given(option, given, why):
    with pytest.raises(ValueError, match="^" + option) as refused:
        HttpOptions(**{option: [given]})
    assert repr(given) in str(refused.value)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("Example.com", b"example.com:80"),
        ("[::1]", b"[::1]:80"),
        ("0:0:0:0:0:0:0:1", b"[::1]"),
        ("192.0.2.7", b"192.0.2.7"),
        ("my_host", b"my_host:1"),
    ],
)
def test_a_host_matches_however_it_is_given(given, sent):
    assert status(PUBLIC, "GET", sent, allowed_hosts=[given]) is None
    assert status(PUBLIC, "GET", b"other", allowed_hosts=[given]) == 421


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("null", b"null"),
        ("HTTPS://Page.test/", b"https://page.test"),
        ("http://localhost:5173", b"http://localhost:5173"),
        ("http://[0:0::1]:5173", b"http://[::1]:5173"),
        ("chrome-extension://abcdef", b"chrome-extension://abcdef"),
    ],
)
def test_an_origin_matches_however_it_is_given(given, sent):
    assert status(PUBLIC, "POST", b"a", sent, allowed_origins=[given]) is None
    assert status(PUBLIC, "POST", b"a", b"https://other.test", allowed_origins=[given]) == 403


def test_a_refusal_names_the_option_and_is_logged_once(caplog):
    options = HttpOptions(allowed_hosts=["a"], allowed_origins=["https://a"])
    guard = RequestGuard(options, PUBLIC)
    for _ in range(2):
        with pytest.raises(BadRequest, match=r"allowed_hosts \(--allow-host\)"):
            guard.check("GET", b"b\x1b[31m", None)
        with pytest.raises(BadRequest, match=r"allowed_origins \(--allow-origin\)"):
            guard.check("POST", b"a", b"https://b")
    by_host, by_origin = (record.getMessage() for record in caplog.records)
    assert by_host == (
        "a request was refused with 421 for its host 'b\\x1b[31m'; to allow it, name it in "
        "allowed_hosts (--allow-host). This is logged once."
    )
    assert by_origin == (
        "a request was refused with 403 for its origin 'https://b'; to allow it, name it in "
        "allowed_origins (--allow-origin). This is logged once."
    )


async def answered(app, kind="websocket", **scope):
    """The status of a request on another server; None if the application does not refuse it."""
    if kind == "websocket":
        socket = Socket(app, "/x", **scope)
        await socket.run()
        message = await socket.message()
        return message["status"]
    call = Call(app, "/x", item=1, headers=scope["headers"])
    call.scope["server"] = scope["server"]
    await call.run()
    return call.status


EVIL = [("host", "localhost"), ("origin", "https://evil.test")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (EVIL, 403),
        ([("host", "localhost:80"), ("origin", "http://localhost:80")], 503),
        ([("host", "evil.test"), ("origin", "http://evil.test")], 421),
    ],
)
async def test_an_application_guards_its_websockets_on_other_servers(headers, status, app):
    assert await answered(app, headers=headers, server=LOCAL) == status
    assert await answered(app, headers=headers, server=PUBLIC) == 503
    assert await answered(app, headers=headers, server=("testserver", 80)) == 503
    assert await answered(app, headers=headers, server=("/run/x", None)) == 503
    offered = {"websocket.http.response": {}, "shoal.disconnect": {}}
    assert await answered(app, headers=headers, server=LOCAL, extensions=offered) == 503


async def test_named_origins_count_for_all_requests_on_other_servers():
    open_to_all = shoal.App()
    assert await answered(open_to_all, "http", headers=EVIL, server=LOCAL) == 404
    strict = shoal.App(allowed_origins=["https://page.test"])
    for kind in ("http", "websocket"):
        assert await answered(strict, kind, headers=EVIL, server=PUBLIC) == 403
    page = [("host", "localhost"), ("origin", "https://page.test")]
    assert await answered(strict, headers=page, server=LOCAL) == 503
    assert await answered(strict, "http", headers=page, server=LOCAL) == 404
