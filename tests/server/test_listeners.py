"""Where a server listens: several addresses at once, UNIX sockets, sockets that it inherits."""

import errno
import os
import socket
import stat
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from echo_app import EchoApp
from live_server import Client, read_all, read_until, request

from shoal.asgi.http_options import HttpOptions
from shoal.server.connection_limit import Exhaustion, LimitedListener
from shoal.server.listeners import AppAddress, Inherited, Tcp, Unix
from shoal.server.run import address_of
from shoal.server.server import serve
from time_limits import HANG_S

pytestmark = pytest.mark.real_time
exists = os.path.lexists


class Live:
    """A server at several addresses; `urls` are theirs, in order."""

    def __init__(self):
        self.urls = []
        self.stop = anyio.Event()
        self.drained = None

    async def run(self, app, config, extra, more, *, task_status):
        def started(url):
            self.urls.append(url)
            if len(self.urls) == 1 + len(extra):
                task_status.started()

        listening = [
            AppAddress(address=at, app=its, on_listening=started, is_admin=its is not app)
            for at, its in extra
        ]
        self.drained = await serve(
            app,
            config,
            shutdown=self.stop.wait,
            on_listening=started,
            extra_addresses=listening,
            **more,
        )


@asynccontextmanager
async def running(app, config=None, extra=(), **more):
    live = Live()
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            await tasks.start(
                live.run, app, config or HttpOptions(port=0, allowed_hosts=["*"]), extra, more
            )
            yield live
            live.stop.set()


async def connect(url):
    if url.startswith("unix:"):
        return Client(await anyio.connect_unix(url.removeprefix("unix:")))
    return Client(await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2])))


async def talk(url, sent=None):
    async with await connect(url) as client:
        await client.send_all(request("/", close=True) if sent is None else sent)
        return await read_all(client)


def answering_with(word):
    async def app(scope, receive, send):
        assert scope["type"] == "http", "only the first application has a lifespan"
        await EchoApp().answer(send, 200, word)

    return app


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shoal.sock")


class Unlucky:
    """A listening socket whose first client is gone in some way before it is accepted."""

    def __init__(self, listening, code):
        self._listening = listening
        self._code = code

    def accept(self):
        code, self._code = self._code, None
        if code is not None:
            raise OSError(code, os.strerror(code))
        return self._listening.accept()

    def __getattr__(self, name):
        return getattr(self._listening, name)


@pytest.mark.parametrize(
    "name", ["ECONNABORTED", "EPERM", "EPROTO", "EHOSTUNREACH", "ENETDOWN", "ETIMEDOUT", "EMFILE"]
)
async def test_a_client_that_is_gone_before_it_is_accepted_ends_nothing(name):
    [bound] = Tcp("127.0.0.1", 0).bind()
    listener = LimitedListener(bound, 1, Exhaustion())
    listening = bound.socket
    with anyio.fail_after(HANG_S):
        listener.listen()
        bound.socket = Unlucky(listening, getattr(errno, name))
        async with await connect(bound.url):
            (await listener.accept()).close()
    listening.close()


async def test_each_address_has_its_own_application(path):
    extra = [(Unix(path), answering_with(b"unix")), (Tcp("127.0.0.1", 0), answering_with(b"tcp"))]
    async with running(EchoApp(), extra=extra) as live:
        assert live.urls[1] == f"unix:{path}"
        answers = [(await talk(url)).split()[-1] for url in live.urls]
    assert answers == [b"hello", b"unix", b"tcp"]


async def test_the_first_address_may_be_a_unix_socket(path):
    async with running(EchoApp(), HttpOptions(uds=path)) as live:
        assert live.urls == [f"unix:{path}"]
        for _ in range(2):
            assert (await talk(live.urls[0])).endswith(b"hello")


@pytest.mark.parametrize(("mode", "found"), [(None, 0o600), ("660", 0o660), ("0666", 0o666)])
async def test_an_option_sets_who_can_open_a_unix_socket(path, mode, found):
    options = {} if mode is None else {"uds_mode": mode}
    before = os.umask(0)
    try:
        async with running(EchoApp(), HttpOptions(uds=path, **options)):
            assert stat.S_IMODE(os.stat(path).st_mode) == found
    finally:
        os.umask(before)


async def test_a_client_at_a_unix_socket_has_no_address(path):
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope)
        await EchoApp().answer(send, 200, b"seen")

    async with running(app, HttpOptions(uds=path), lifespan=False) as live:
        await talk(live.urls[0])
    assert (scopes[0]["client"], scopes[0]["server"]) == (None, None)


async def test_an_error_of_a_client_at_a_unix_socket_is_logged(path, caplog):
    async with running(EchoApp(), HttpOptions(uds=path)) as live:
        fields = b"\x82\x86\x84\x41\x09localhost"
        asked = b"\0\0%c\1\5%b" + fields
        streams = ((2 * n + 1).to_bytes(4) for n in range(150))
        frames = (asked % (len(fields), one) + b"\0\0\4\3\0%b\0\0\0\0" % one for one in streams)
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
        await talk(live.urls[0], preface + b"".join(frames))
        assert (await talk(live.urls[0])).endswith(b"hello")
    (record,) = caplog.records
    assert record.getMessage() == "an error ended the connection from a UNIX socket: TooManyResets"


async def test_a_client_at_a_unix_socket_that_talks_on_still_gets_its_answer(path):
    async with running(EchoApp(), HttpOptions(uds=path)) as live:
        upload = request("/early", method="POST", headers=["Content-Length: 10000000"])
        async with await connect(live.urls[0]) as client:
            await client.send_all(upload + bytes(2**17))
            assert b"too large" in await read_until(client, b"too large")


async def test_nothing_is_left_of_a_unix_socket(path, tmp_path):
    async with running(EchoApp(), HttpOptions(uds=path)):
        assert exists(path)
    assert list(tmp_path.iterdir()) == []


async def test_a_unix_socket_is_free_again_while_the_server_drains(path, echo):
    async with running(echo, HttpOptions(uds=path)) as old, await connect(old.urls[0]) as client:
        await client.send_all(request("/hold"))
        await echo.entered.wait()
        old.stop.set()
        await anyio.wait_all_tasks_blocked()
        async with running(EchoApp(), HttpOptions(uds=path)) as new:
            assert (await talk(new.urls[0])).endswith(b"hello")
            echo.release.set()
            assert (await read_all(client)).endswith(b"held")
            assert (await talk(new.urls[0])).endswith(b"hello")


def bind(address):
    [bound] = address.bind()
    return bound


async def test_a_socket_file_of_a_dead_server_is_replaced(path):
    died = f"""
import os, socket
from shoal.server.listeners import Unix
Unix({path!r}).bind()[0].socket.listen()
os.kill(os.getpid(), 9)
"""
    ended = await anyio.run_process([sys.executable, "-c", died], check=False)
    assert ended.returncode == -9
    assert exists(path)
    async with running(EchoApp(), HttpOptions(uds=path)) as live:
        assert (await talk(live.urls[0])).endswith(b"hello")


@pytest.mark.parametrize("listens", [False, True])
async def test_a_socket_of_a_live_server_is_refused(path, listens):
    held = bind(Unix(path))
    if listens:
        held.socket.listen()
    with pytest.raises(OSError, match="another server listens there"):
        bind(Unix(path))
    held.close()
    bind(Unix(path)).close()


async def test_a_socket_of_a_server_that_has_no_lock_is_refused(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(OSError, match="another server listens there"):
            bind(Unix(path))
        assert exists(path)
    bind(Unix(path)).close()


async def test_a_file_that_is_no_socket_is_left_alone(path, tmp_path):
    (tmp_path / "shoal.sock").write_text("precious")
    with pytest.raises(OSError, match="not a socket"):
        bind(Unix(path))
    assert list(tmp_path.iterdir()) == [tmp_path / "shoal.sock"]


async def test_a_socket_that_another_has_put_there_is_not_removed(path):
    held = bind(Unix(path))
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        held.close()
        assert exists(path)


async def test_a_path_that_is_too_long_is_said_to_be(tmp_path):
    with pytest.raises(OSError, match="too long"):
        bind(Unix(str(tmp_path / ("x" * 120))))
    assert list(tmp_path.iterdir()) == []


async def test_an_inherited_socket_is_not_passed_on_to_child_processes():
    inherited = socket.create_server(("127.0.0.1", 0))
    inherited.set_inheritable(True)
    held = bind(Inherited(inherited.detach()))
    assert not held.socket.get_inheritable()
    held.close()


@pytest.mark.parametrize("listens", [False, True])
async def test_an_inherited_socket_is_served(listens):
    inherited = socket.socket()
    inherited.bind(("127.0.0.1", 0))
    if listens:
        inherited.listen()
    port = inherited.getsockname()[1]
    async with running(EchoApp(), HttpOptions(fd=inherited.detach(), allowed_hosts=["*"])) as live:
        assert live.urls == [f"http://127.0.0.1:{port}"]
        assert (await talk(live.urls[0])).endswith(b"hello")


async def test_what_is_no_stream_socket_is_refused():
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        with pytest.raises(OSError, match="not a stream socket"):
            bind(Inherited(datagrams.fileno()))
        assert datagrams.fileno() >= 0
        os.fstat(datagrams.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        bind(Inherited(10_000))


async def test_an_address_that_is_taken_frees_the_others(path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        extra = [AppAddress(address=Tcp(*taken.getsockname()), app=EchoApp(), is_admin=True)]
        app = EchoApp()
        with pytest.raises(OSError, match="in use"):
            await serve(
                app, HttpOptions(uds=path), shutdown=anyio.sleep_forever, extra_addresses=extra
            )
    assert app.lifespan_events == []
    assert not exists(path)


async def test_the_operators_address_trusts_no_proxy_and_has_no_state_of_the_application():
    echo, seen = EchoApp(), []

    async def public(scope, receive, send):
        if scope["type"] == "lifespan":
            scope["state"]["model"] = "loaded"
        else:
            seen.append((scope["client"][0], dict(scope["state"])))
        await echo(scope, receive, send)

    trust = {"trusted_peers": ["127.0.0.1"], "proxy_headers": ["x-forwarded-for"]}
    admin = [(Tcp("127.0.0.1", 0), lambda *args: public(*args))]
    sent = request("/", headers=["X-Forwarded-For: 1.2.3.4"], close=True)
    async with running(public, HttpOptions(port=0, allowed_hosts=["*"], **trust), admin) as live:
        for url in live.urls:
            assert (await talk(url, sent)).endswith(b"hello")
    assert seen == [("1.2.3.4", {"model": "loaded"}), ("127.0.0.1", {})]


async def test_a_drain_is_that_of_all_addresses(path):
    public, admin = EchoApp(), EchoApp()
    extra = [(Unix(path), admin)]
    async with (
        running(public, extra=extra) as live,
        await connect(live.urls[0]) as one,
        await connect(live.urls[1]) as other,
    ):
        for client, app in ((one, public), (other, admin)):
            await client.send_all(request("/hold"))
            await app.entered.wait()
        live.stop.set()
        await anyio.wait_all_tasks_blocked()
        assert not exists(path)
        for client, app in ((one, public), (other, admin)):
            app.release.set()
            answer = await read_all(client)
            assert answer.endswith(b"held")
            assert b"connection: close" in answer
    assert (live.drained.finished, live.drained.cut) == (2, 0)
    assert public.lifespan_events == ["lifespan.startup", "lifespan.shutdown"]
    assert admin.lifespan_events == []


async def test_the_operator_can_connect_when_the_public_address_is_at_its_limit(path, echo):
    config = HttpOptions(port=0, allowed_hosts=["*"], max_connections=1)
    admin = running(echo, config, [(Unix(path), answering_with(b"admin"))])
    async with admin as live, await connect(live.urls[0]) as client:
        await client.send_all(request("/hold", close=True))
        await echo.entered.wait()
        assert (await talk(live.urls[1])).endswith(b"admin")
        echo.release.set()
        await read_all(client)


async def test_hosts_and_origins_are_for_the_public_address(path):
    sent = b"POST / HTTP/1.1\r\nHost: x\r\nOrigin: http://y\r\nConnection: close\r\n\r\n"
    config = HttpOptions(port=0, allowed_hosts=["a.test"], allowed_origins=["http://a.test"])
    async with running(EchoApp(), config, [(Unix(path), answering_with(b"admin"))]) as live:
        assert b" 421 " in await talk(live.urls[0], sent)
        assert (await talk(live.urls[1], sent)).endswith(b"admin")


async def test_a_lifespan_that_is_open_already_is_not_run(echo):
    async with running(echo, lifespan=False) as live:
        assert (await talk(live.urls[0])).endswith(b"hello")
    assert echo.lifespan_events == []
    assert (live.drained.started, live.drained.failure) == (True, None)


async def test_a_directory_that_is_not_there_is_told_with_the_socket(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        bind(Unix(str(tmp_path / "absent" / "a.sock")))
    assert caught.value.filename == str(tmp_path / "absent" / "a.sock")


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
BOTH = [
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
]


@needs_ipv6
async def test_a_name_is_served_at_all_its_addresses(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: BOTH)
    options = HttpOptions(host="localhost", port=0, allowed_hosts=["*"])
    async with running(EchoApp(), options) as live:
        [url] = live.urls
        port = int(url.rpartition(":")[2])
        for host in ("::1", "127.0.0.1"):
            async with Client(await anyio.connect_tcp(host, port)) as client:
                await client.send_all(request("/", close=True))
                assert (await read_all(client)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("absent", ["203.0.113.9", "2001:db8::9"])
def test_an_address_that_this_machine_does_not_have_is_left_out(absent, monkeypatch):
    family = socket.AF_INET6 if ":" in absent else socket.AF_INET
    missing = (
        family,
        socket.SOCK_STREAM,
        6,
        "",
        (absent, 0, 0, 0) if ":" in absent else (absent, 0),
    )
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [missing, BOTH[1]])
    [bound] = Tcp("name", 0).bind()
    assert bound.url.startswith("http://127.0.0.1:")
    bound.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [missing])
    with pytest.raises(OSError):
        Tcp("name", 0).bind()


@needs_ipv6
def test_a_port_that_another_has_at_one_address_is_refused_at_all(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        names = [(*one[:4], (one[4][0], port, *one[4][2:])) for one in BOTH]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: names)
        with pytest.raises(OSError, match="in use"):
            Tcp("localhost", port).bind()


@needs_ipv6
def test_an_ipv6_address_may_have_brackets():
    options = HttpOptions(host="[::1]", port=0)
    bound = bind(address_of(options))
    assert bound.url.startswith("http://[::1]:")
    bound.close()
