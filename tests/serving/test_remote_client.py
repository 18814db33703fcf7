"""The remote client: the verbs of a client over the admin API, and what can go wrong on the way."""

import copy
import json
import pickle
import socket
import ssl
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import MappingProxyType

import anyio
import httpx
import pytest
import trio
from anyio.from_thread import BlockingPortal

from serving.fake_client import FakeClient, full_status
from shoal import errors
from shoal.asgi.http_options import HttpOptions
from shoal.http.admin.api import AdminApi
from shoal.http.app.admin_mount import AdminMount
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS
from shoal.server.server import serve
from shoal.serving.backend_config import BackendConfig
from shoal.serving.clients.remote_client import RemoteClient
from shoal.serving.clients.wire import KINDS, WireError, error_from_wire, error_to_wire
from time_limits import HANG_S

TOKEN = "correct-horse"


@pytest.fixture
def fake():
    client = FakeClient()
    client.endpoints["e"] = {"route": "/e", "methods": ["GET"], "traffic": {}, "shadows": {}}
    return client


def admin_listener(fake, token=None, allowed=("*",), options=None):
    return AdminMount(AdminApi(fake, token=token, allowed_modules=allowed, options=options))


@asynccontextmanager
async def connected(fake, token=None, **more):
    transport = httpx.ASGITransport(app=admin_listener(fake, token, **more))
    async with RemoteClient("http://localhost", token=token, transport=transport) as client:
        yield client


@asynccontextmanager
async def handle_of(fake, **more):
    async with connected(fake, **more) as client:
        yield await client.get_handle("e")


@asynccontextmanager
async def served(app):
    """Serves on a real socket, on trio; gives the URL."""
    stop = trio.Event()

    async def run(task_status):
        await serve(app, HttpOptions(port=0), shutdown=stop.wait, on_listening=task_status.started)

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(run)
            stop.set()


@contextmanager
def served_in_a_thread(app):
    """The same for tests without an event loop."""
    started, stop = threading.Event(), trio.Event()
    found = []

    async def main():
        found.append(trio.lowlevel.current_trio_token())
        await serve(
            app,
            HttpOptions(port=0, graceful_timeout_s=1),
            shutdown=stop.wait,
            on_listening=lambda url: (found.append(url), started.set()),
        )

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    try:
        assert started.wait(HANG_S)
        yield found[1]
    finally:
        found[0].run_sync_soon(stop.set)
        thread.join()


async def test_the_status_is_that_of_the_server(fake):
    async with connected(fake) as client:
        assert await client.status() == full_status()


async def test_an_object_is_no_code_that_can_be_sent(fake):
    async with connected(fake) as client:
        with pytest.raises(TypeError, match=r"serving\.fake_client:full_status"):
            await client.create_backend("a", full_status)
        with pytest.raises(TypeError, match="can't be sent as JSON"):
            await client.create_backend("a", "models:Model", object())
        with pytest.raises(errors.NotDurable, match="batch_size_fn"):
            await client.create_backend("a", "models:f", config=BackendConfig(batch_size_fn=len))
        with pytest.raises(TypeError, match="must be a mapping"):
            await client.create_backend("a", "models:f", config=[])
    assert fake.backends == {}


async def test_a_config_of_objects_can_be_looked_at(fake):
    fake.backends["a"] = BackendConfig(batch_size_fn=lambda item: 1, user_config={"x": object()})
    async with connected(fake) as client:
        config = await client.get_backend_config("a")
    assert config.batching["batch_size_fn"].startswith(f"{__name__}:")
    assert config.user_config["x"].startswith("<object object")


@pytest.mark.parametrize("name", ["no", "a/b", "..", "", "x" * 65, "\u00fc", None])
async def test_a_name_that_is_not_there_is_said_to_be_none(fake, name):
    async with connected(fake) as client:
        for verb in (
            partial(client.get_backend_config, name),
            partial(client.delete_backend, name),
            partial(client.get_handle, name),
        ):
            with pytest.raises(errors.NoSuchName, match="there is no"):
                await verb()

        if name != "no":  # nothing can ever have such a name
            with pytest.raises((TypeError, ValueError), match="endpoint's name"):
                await client.get_handle(name, missing_ok=True)


def error_of(made):
    if made is errors.WrongBatchSize:
        return made("its text", expected=2, got=3)
    if made is errors.ReplicaDied:
        return made("its text", exit_code=None, signal="SIGKILL", last_lines="segv")
    if made is errors.RetryLater:
        error = made(2.5)
        error.args = ("its text",)
        return error
    return made("its text")


@pytest.mark.parametrize("made", KINDS.values(), ids=lambda made: made.__name__)
async def test_an_error_has_its_class_text_and_attributes_again(fake, made):
    fake.fails = error_of(made)
    async with connected(FakeClient()) as client:
        client._connection.pool._client = None  # another transport
        client._connection.pool._transport = httpx.ASGITransport(app=admin_listener(fake))
        with pytest.raises(made) as caught:
            await client.restart_backend("a")
    assert type(caught.value) is made
    assert str(caught.value) == "its text"
    assert vars(caught.value) == vars(error_of(made))


class Odd(UnicodeError):
    pass


@pytest.mark.parametrize(
    ("error", "made", "text"),
    [
        (LookupError("no"), LookupError, "no"),
        (KeyError("k"), KeyError, "'k'"),
        (ConnectionResetError("gone"), ConnectionError, "ConnectionResetError: gone"),
        (Odd("text"), ValueError, f"{__name__}.Odd: text"),
        (ExceptionGroup("two", [OSError()]), errors.HandlerFailed, "ExceptionGroup: two (1 sub"),
        (Exception("bare"), errors.HandlerFailed, "Exception: bare"),
    ],
)
def test_an_error_of_the_users_code_goes_by_its_nearest_builtin(error, made, text):
    again = error_from_wire(error_to_wire(error))
    assert type(again) is made
    assert str(again).startswith(text)
    assert str(error_from_wire(error_to_wire(again))) == str(again)


@pytest.mark.parametrize("like", ["SystemExit", "eval", "Odd", "os.system", ""])
def test_a_class_that_is_not_in_the_table_is_never_made(like):
    again = error_from_wire(WireError("raised", "text", {"class": like, "like": like}))
    assert type(again) is errors.HandlerFailed
    assert error_from_wire(WireError(like, "text")) is None


async def test_a_wrong_token_is_not_allowed(fake):
    transport = httpx.ASGITransport(app=admin_listener(fake, TOKEN))
    for token, says in ((None, "Authorization: Bearer"), ("wrong", "token is wrong")):
        client = RemoteClient("http://localhost", token=token, transport=transport)
        with pytest.raises(errors.NotAllowed, match=says):
            await client.status()
        await client.aclose()
    async with connected(fake, TOKEN) as client:
        await client.status()


async def test_a_module_that_was_not_allowed_is_not_allowed(fake):
    async with connected(fake, TOKEN, allowed=["models"]) as client:
        with pytest.raises(errors.NotAllowed, match="did not allow imports from 'os'"):
            await client.create_backend("a", "os:system")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"Not Found", "no admin API at http://localhost"),
        (200, b"<html>", "not Shoal's admin API"),
        (200, b"[" * 100_000, "not Shoal's admin API"),
    ],
)
async def test_an_answer_that_is_not_of_the_api_is_explained(status, body, said):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    client = RemoteClient("http://localhost", transport=httpx.ASGITransport(app=app))
    with pytest.raises(ConnectionError, match=said):
        await client.status()
    await client.aclose()


@pytest.mark.real_time
async def test_a_server_that_is_not_there_is_said_to_be_gone(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"unix:{tmp_path}/no.sock"):
        with pytest.raises(ConnectionError, match="shoal serve") as caught:
            async with RemoteClient(url):
                pass
        assert url in str(caught.value)


@pytest.mark.real_time
async def test_a_server_that_breaks_off_may_have_done_it():
    async def hang_up(stream):
        await stream.receive()
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        client = RemoteClient(f"http://127.0.0.1:{port}")
        with pytest.raises(ConnectionError, match="may have been carried out"):
            await client.restart_backend("a")
        await client.aclose()
        tasks.cancel_scope.cancel()


async def test_a_server_that_answers_bit_by_bit_has_no_longer_than_another():
    class Dripping(httpx.AsyncByteStream):
        async def __aiter__(self):
            while True:
                await anyio.sleep(1)
                yield b" "

    drip = httpx.MockTransport(lambda _: httpx.Response(200, stream=Dripping()))
    client = RemoteClient("http://x", timeout_s=5, transport=drip)
    with anyio.fail_after(60):
        with pytest.raises(TimeoutError, match="http://x took too long"):
            await client.status()
        handle = await client.get_handle("e", missing_ok=True)
        with pytest.raises(TimeoutError, match="http://x took too long"):
            await handle.options(timeout_s=5).call()
    await client.aclose()


@pytest.mark.parametrize(
    "url",
    ["localhost:80", "ftp://x", "http://", "unix:", "http://u:p@x", "http://x/?a=1", "", "//x"],
)
def test_a_url_that_leads_to_no_server_is_refused(url):
    with pytest.raises(ValueError, match=r"shoal\.sock"):
        RemoteClient(url)


def test_arguments_of_the_wrong_type_are_refused():
    with pytest.raises(TypeError, match="must be text"):
        RemoteClient(8000)
    with pytest.raises(TypeError, match="token must be text"):
        RemoteClient("http://x", token=b"x")
    with pytest.raises(ValueError, match="printable"):
        RemoteClient("http://x", token="a b")
    with pytest.raises(TypeError, match="timeout_s"):
        RemoteClient("http://x", timeout_s="5")
    with pytest.raises(ValueError, match="timeout_s"):
        RemoteClient("http://x", timeout_s=-1)


@pytest.mark.parametrize("url", ["http://x", "HTTPS://x", "unix:/x.sock"])
async def test_the_usual_authorities_are_trusted_where_tls_is_spoken_and_none_elsewhere(
    url, monkeypatch
):
    made = []

    class Client(httpx.AsyncClient):
        def __init__(self, **options):
            made.append(options["verify"])
            gone = httpx.MockTransport(lambda _: httpx.Response(404))
            super().__init__(transport=gone)

    monkeypatch.setattr(httpx, "AsyncClient", Client)
    with pytest.raises(ConnectionError):
        await RemoteClient(url).__aenter__()
    [verify] = made
    if url.startswith("HTTPS"):
        assert verify is True
    else:
        assert verify.verify_mode == ssl.CERT_REQUIRED
        assert verify.get_ca_certs() == []


def test_without_httpx_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'shoal\[client\]'"):
        RemoteClient("http://x")


async def test_neither_a_client_nor_a_handle_can_be_pickled(fake):
    async with connected(fake) as client:
        with pytest.raises(TypeError, match=r"shoal\.connect\('http://localhost'\)"):
            pickle.dumps(client)
        with pytest.raises(TypeError, match="get_handle"):
            pickle.dumps(await client.get_handle("e"))


async def test_a_client_that_is_closed_leaves_the_server_alone(fake):
    async with connected(fake) as client:
        pass
    await client.aclose()
    with pytest.raises(errors.ShutDown, match="closed"):
        await client.status()
    assert not fake.is_shut_down


async def test_a_call_passes_arguments_and_options_on(fake):
    async with handle_of(fake) as handle:
        assert handle.endpoint == "e"
        chosen = handle.options(shard_key="u", priority=2).options(http_headers={"X-A": "b"})
        assert await chosen.call(1, k="v") == {"args": [1], "kwargs": {"k": "v"}}
        options = {"shard_key": "u", "priority": 2, "http_headers": {"X-A": "b"}}
        assert fake.asked[-1] == ("call", "e", (1,), {"k": "v"}, options)
        assert await handle.remote(2) == {"args": [2], "kwargs": {}}
        assert fake.asked[-1][-1] == {}


async def test_every_option_of_a_handle_is_passed_on_in_the_form_of_json(fake):
    headers = MappingProxyType({"X-A": "b"})
    given = {"method_name": "m", "shard_key": "u", "http_method": "PUT", "http_headers": headers}
    given |= {"timeout_s": 5, "priority": 2, "model": "small"}
    assert given.keys() == HANDLE_OPTIONS.keys()
    async with connected(fake) as client:
        await (await client.get_handle("e")).options(**given).call()
        assert fake.asked[-1][-1] == {**given, "http_headers": {"X-A": "b"}}


@pytest.mark.parametrize(
    ("item", "error", "words"),
    [
        ({1: 2}, TypeError, "the key 1 of a dict"),
        ([({"a": {2: 3}},)], TypeError, "the key 2 of a dict"),
        (float("nan"), ValueError, "can't be sent as JSON"),
        ("\ud800", ValueError, "surrogates not allowed"),
        (json.loads("[" * 300 + "]" * 300), ValueError, "recursion limit"),
    ],
    ids=["a key", "a key within", "NaN", "half a surrogate pair", "too deep"],
)
async def test_an_item_that_json_has_no_form_for_is_refused(fake, item, error, words):
    async with handle_of(fake) as handle:
        with pytest.raises(error, match=words):
            await handle.call(item)


async def test_an_item_that_is_too_large_for_the_server_is_told_so(fake):
    async with handle_of(fake, options=HttpOptions(max_body_bytes=1000)) as handle:
        assert await handle.call("x" * 2**20)
        with pytest.raises(errors.ItemTooLarge, match="at most 1049576 bytes"):
            await handle.call("x" * (2**20 + 1000))


async def test_an_array_is_sent_as_lists(fake):
    numpy = pytest.importorskip("numpy")
    async with handle_of(fake) as handle:
        assert (await handle.call(numpy.arange(4).reshape(2, 2)))["args"] == [[[0, 1], [2, 3]]]


async def test_the_nearest_deadline_is_sent_along(fake):
    async with connected(fake) as client:
        handle = (await client.get_handle("e")).options(timeout_s=5)
        with anyio.fail_after(10):
            await handle.call()
        assert fake.asked[-1][-1] == {"timeout_s": 5}
        with anyio.fail_after(2):
            await handle.call()
        assert fake.asked[-1][-1] == {"timeout_s": pytest.approx(2)}


async def test_the_deadline_of_a_scope_is_told_by_the_scope(fake):
    async def answer():
        raise errors.DeadlineExceeded("too late")

    fake.answer = answer
    async with handle_of(fake) as handle:
        with anyio.move_on_after(5) as scope:
            await handle.call()
        assert scope.cancelled_caught
        with anyio.move_on_after(5) as scope, pytest.raises(errors.DeadlineExceeded):
            await handle.options(timeout_s=1).call()
        assert not scope.cancelled_caught


async def test_a_stream_gives_its_results_and_ends(fake):
    fake.results = [1, "two\u2028lines\x85", {"three": 3}, ...]
    async with handle_of(fake) as handle:
        async with handle.stream("x", k=1) as stream:
            assert [result async for result in stream] == [1, "two\u2028lines\x85", {"three": 3}]
            assert await anext(stream, "over") == "over"
        assert fake.asked[-1] == ("stream", "e", ("x",), {"k": 1}, {})


async def test_a_stream_fails_after_what_came_before(fake):
    fake.results = [1, errors.ReplicaDied("killed", signal="SIGKILL")]
    async with connected(fake) as client, (await client.get_handle("e")).stream() as stream:
        assert await anext(stream) == 1
        with pytest.raises(errors.ReplicaDied, match="killed") as caught:
            await anext(stream)
    assert caught.value.signal == "SIGKILL"


async def test_a_stream_that_fails_at_once_fails_on_entering(fake):
    fake.results = [errors.Overloaded("full")]
    async with connected(fake) as client:
        stream = (await client.get_handle("e")).stream()
        with pytest.raises(errors.Overloaded):
            async with stream:
                pass


async def test_a_stream_must_be_entered(fake):
    async with connected(fake) as client:
        stream = (await client.get_handle("e")).stream()
        with pytest.raises(RuntimeError, match="async with"):
            await anext(stream)
        await stream.aclose()


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(fake):
    began, ended = trio.Event(), trio.Event()

    async def answer():
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    fake.answer = answer
    async with (
        served(admin_listener(fake)) as url,
        RemoteClient(url) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon((await client.get_handle("e")).call)
        await began.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_a_stream_that_is_left_is_left_at_the_server(fake):
    fake.results = [1]
    async with served(admin_listener(fake)) as url, RemoteClient(url) as client:
        async with (await client.get_handle("e")).stream() as stream:
            assert await anext(stream) == 1
        await fake.streams[0].closed.wait()
        assert await anext(stream, "over") == "over"


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_a_wait_for_a_result_that_is_cancelled_ends_the_stream(fake):
    fake.results = [1]
    async with served(admin_listener(fake)) as url, RemoteClient(url) as client:
        handle = await client.get_handle("e")
        async with handle.stream() as stream:
            assert await anext(stream) == 1
            with trio.move_on_after(0.01) as scope:
                await anext(stream)
            assert scope.cancelled_caught
            await fake.streams[0].closed.wait()


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_a_stream_that_breaks_off_is_no_stream_that_ended(fake):
    async def app(scope, receive, send):
        if not scope["path"].endswith("/call"):
            await admin_listener(fake)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"item":1}\n', "more_body": True})
        await send({"type": "http.response.body", "body": b'{"it'})

    async with served(app) as url, RemoteClient(url) as client:
        handle = await client.get_handle("e")
        async with handle.stream() as stream:
            assert await anext(stream) == 1
            with pytest.raises(ConnectionError, match="broke off"):
                await anext(stream)


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_as_many_calls_are_under_way_as_are_made(fake):
    many, all_here, count = 150, trio.Event(), 0

    async def answer():
        nonlocal count
        count += 1
        if count == many:
            all_here.set()
        await all_here.wait()

    fake.answer = answer
    async with served(admin_listener(fake)) as url, RemoteClient(url) as client:
        handle = await client.get_handle("e")
        async with trio.open_nursery() as nursery:
            for _ in range(many):
                nursery.start_soon(handle.call)


@pytest.mark.real_time
def test_a_thread_has_the_same_verbs(fake):
    with served_in_a_thread(admin_listener(fake)) as url, RemoteClient(url).sync as client:
        client.create_backend("a", "models:Model", 1, config={"retries": 2})
        assert client.get_backend_config("a") == BackendConfig(retries=2)
        assert client.status() == full_status()
        handle = client.get_handle("e")
        assert handle.endpoint == "e"
        assert handle.options(priority=2).call(1) == {"args": [1], "kwargs": {}}
        assert fake.asked[-1][-1] == {"priority": 2}
        assert client.get_handle("no", missing_ok=True).endpoint == "no"
        with pytest.raises(errors.NoSuchName):
            client.get_handle("no")
        assert "set_traffic" in dir(client)
        with pytest.raises(AttributeError, match="no verb 'explode'"):
            client.explode()


def test_the_face_for_threads_can_be_copied():
    with RemoteClient("http://127.0.0.1:1").sync as client:
        same = copy.copy(client)
        assert same.status.__name__ == "status"


@pytest.mark.real_time
def test_a_program_without_an_event_loop_connects_as_it_starts(fake):
    with served_in_a_thread(admin_listener(fake)) as url:
        with RemoteClient(url) as client:
            assert client.get_handle("e").call(1) == {"args": [1], "kwargs": {}}
        with pytest.raises(errors.ShutDown):
            client.status()
    with pytest.raises(ConnectionError, match="no server answers"), RemoteClient(url):
        pass


async def test_an_event_loop_must_not_connect_by_blocking(fake):
    async with connected(fake) as client:
        with pytest.raises(RuntimeError, match=r"async with shoal\.connect"), client:
            pass


@pytest.mark.real_time
def test_a_thread_reads_a_stream(fake):
    fake.results = [1, 2, ...]
    with served_in_a_thread(admin_listener(fake)) as url, RemoteClient(url).sync as client:
        with client.get_handle("e").stream() as stream:
            assert list(stream) == [1, 2]
        fake.results = [1]
        with client.get_handle("e").stream() as stream:
            assert next(stream) == 1
        stream = client.get_handle("e").stream()
        with pytest.raises(RuntimeError, match="enter the stream"):
            next(stream)
        with stream:
            asked = len(fake.asked)
            with stream as same:
                assert next(same) == 1
            assert len(fake.asked) == asked


@pytest.mark.real_time
def test_a_shutdown_from_a_thread_is_the_end_of_the_client(fake):
    with served_in_a_thread(admin_listener(fake)) as url:
        client = RemoteClient(url)
        handle = client.sync.get_handle("e")
        client.sync.shutdown()
        client.sync.shutdown()
        assert fake.is_shut_down
        for verb in (client.sync.status, handle.call):
            with pytest.raises(errors.ShutDown, match="was shut down"):
                verb()
        client.sync.close()
        client.sync.close()
        with pytest.raises(errors.ShutDown):
            client.sync.status()


@pytest.mark.real_time
def test_a_client_for_threads_that_was_never_used_begins_no_thread():
    before = set(threading.enumerate())
    with RemoteClient("http://127.0.0.1:1").sync:
        assert set(threading.enumerate()) <= before


@pytest.mark.real_time
async def test_an_event_loop_must_not_block_and_is_told_what_to_write(fake):
    async with connected(fake) as client:
        with pytest.raises(RuntimeError, match=r"await client\.status\(\.\.\.\)"):
            client.sync.status()
        handle = await client.get_handle("e")
        with pytest.raises(RuntimeError, match=r"await handle\.call\(\.\.\.\)"):
            handle.sync.call(1)
        with pytest.raises(RuntimeError, match="async with handle"):
            handle.sync.stream(1).__enter__()


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_a_worker_thread_of_an_event_loop_may_block(fake):
    async with served(admin_listener(fake)) as url, RemoteClient(url) as client:
        handle = (await client.get_handle("e")).options(shard_key="u")
        found = await anyio.to_thread.run_sync(handle.sync.call, 1)
        assert found == {"args": [1], "kwargs": {}}
        assert fake.asked[-1][-1] == {"shard_key": "u"}


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_closing_waits_for_no_thread_that_blocks_on_the_client(fake):
    began = trio.Event()

    async def answer():
        began.set()
        await trio.sleep_forever()

    fake.answer = answer
    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with (
        served(admin_listener(fake)) as url,
        anyio.create_task_group() as tasks,
        RemoteClient(url) as client,
    ):
        handle = await client.get_handle("e")

        async def block():
            with pytest.raises(errors.ShutDown):
                await anyio.to_thread.run_sync(handle.sync.call)

        tasks.start_soon(block)
        await began.wait()


@pytest.mark.real_time
@pytest.mark.one_loop
async def test_a_cell_of_a_notebook_may_block(fake, monkeypatch):
    monkeypatch.setattr("builtins.get_ipython", object, raising=False)
    app = admin_listener(fake)

    def look():
        async def waiter():
            with RemoteClient(url).sync as client:
                return client.status()

        return anyio.run(waiter)

    async with served(app) as url:
        assert await anyio.to_thread.run_sync(look) == full_status()


@pytest.mark.real_time
def test_a_thread_that_is_interrupted_cancels_its_call(fake, monkeypatch):
    began, ended = threading.Event(), threading.Event()

    async def answer():
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    fake.answer = answer

    class Interrupted:
        def __init__(self, future):
            self.future = future

        def result(self):
            assert began.wait(HANG_S)
            raise KeyboardInterrupt

        def cancel(self):
            self.future.cancel()

    with served_in_a_thread(admin_listener(fake)) as url, RemoteClient(url).sync as client:
        handle = client.get_handle("e")
        start = BlockingPortal.start_task_soon
        with monkeypatch.context() as patched:
            patched.setattr(
                BlockingPortal, "start_task_soon", lambda *args: Interrupted(start(*args))
            )
            with pytest.raises(KeyboardInterrupt):
                handle.call()
        assert ended.wait(HANG_S)
