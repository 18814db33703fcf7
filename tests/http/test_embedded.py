"""A controller that is served over HTTP in its own program."""

import os
import socket
import stat
from contextlib import suppress

import anyio
import httpx
import pytest

import shoal
from handlers import echo
from serving.plain_code import double
from shoal import embedded_server as embedded
from shoal import errors
from shoal.asgi.http_options import HttpOptions
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

FREE = {"port": 0}
OPERATED = {**FREE, "token": "correct-horse"}
PROCESS = {"placement": "process"}


async def talk(url, path, method="GET", **more):
    async with httpx.AsyncClient(trust_env=False, base_url=url) as client:
        return await client.request(method, path, **more)


async def is_served(url):
    try:
        return (await talk(url, "/-/healthz")).status_code == 200
    except httpx.TransportError:
        return False


async def serve(client, code):
    await client.create_backend("b", code)
    await client.create_endpoint("e", backend="b", route="/e", methods=["POST"])


async def ask(url, statuses):
    statuses.append((await talk(url, "/e", "POST", json=4, timeout=HANG_S)).status_code)


def operating(url):
    return shoal.connect(url, token="correct-horse")


async def test_what_is_changed_by_either_client_is_answered_from_then_on():
    async with shoal.start(http=OPERATED) as client:
        await serve(client, double)
        assert (await talk(client.url, "/e", "POST", json=4)).json() == 8
        async with operating(client.url) as remote:
            assert set(await remote.list_backends()) == {"b"}
            assert await (await remote.get_handle("e")).call(3) == 6
            await remote.create_endpoint("f", backend="b", route="/f", methods=["POST"])
        assert (await talk(client.url, "/f", "POST", json=5)).json() == 10
        await client.delete_endpoint("f")
        assert (await talk(client.url, "/f", "POST", json=5)).status_code == 404
        url = client.url
    with pytest.raises(httpx.ConnectError):
        await talk(url, "/e")


@pytest.mark.parametrize("http", [None, False])
async def test_it_is_not_served_unless_asked_for(http):
    async with shoal.start(http=http) as client:
        assert client.url is None


async def test_an_address_in_use_is_an_os_error_and_frees_the_state_file(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        http = {"port": taken.getsockname()[1]}
        with pytest.raises(OSError, match="in use"):
            async with shoal.start(http=http, state=tmp_path / "state.db"):
                pass
    async with shoal.start(state=tmp_path / "state.db"):
        pass


async def test_no_connection_is_accepted_while_it_shuts_down_and_what_runs_is_answered():
    runs, ends = anyio.Event(), anyio.Event()
    statuses = []

    async def held(items: list[int]) -> list[int]:
        runs.set()
        await ends.wait()
        return items

    async with shoal.start(http=OPERATED) as client, anyio.create_task_group() as tasks:
        await serve(client, held)
        tasks.start_soon(ask, client.url, statuses)
        await runs.wait()
        async with operating(client.url) as remote, anyio.create_task_group() as shutting_down:
            shutting_down.start_soon(remote.shutdown)
            with anyio.fail_after(HANG_S):
                while await is_served(client.url):
                    await anyio.lowlevel.checkpoint()
            ends.set()
        with pytest.raises(errors.ShutDown):
            await client.list_backends()
    assert statuses == [200]


@pytest.mark.parametrize(("traffic", "status"), [("b", 200), (None, 503)], ids=["line", "held"])
async def test_what_waits_when_the_block_is_left_is_answered(traffic, status):
    statuses = []

    async with anyio.create_task_group() as tasks, shoal.start(http=FREE) as client:
        config = {"batch_wait_timeout_s": None, "max_batch_size": 9}
        await client.create_backend("b", echo, config=config)
        await client.create_endpoint("e", backend=traffic, route="/e", methods=["POST"])
        tasks.start_soon(ask, client.url, statuses)
        while not (client.backends["b"].queued or client.endpoints["e"].held):
            await anyio.lowlevel.checkpoint()
    assert statuses == [status]


async def test_a_block_that_is_cancelled_leaves_no_request_without_an_end():
    called, ended = anyio.Event(), anyio.Event()

    async def hang(items: list[int]) -> list[int]:
        called.set()
        await anyio.sleep_forever()
        return items

    async def ask_and_end(url) -> None:
        with suppress(httpx.TransportError):
            assert (await talk(url, "/e", "POST", json=4)).status_code == 503
        ended.set()

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with shoal.start(http=FREE) as client:
                await serve(client, hang)
                tasks.start_soon(ask_and_end, client.url)
                await called.wait()
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with anyio.fail_after(HANG_S):
            await ended.wait()


async def test_a_unix_socket_is_the_owners_and_goes_with_the_server(tmp_path):
    path = tmp_path / "server.sock"
    async with shoal.start(http={"uds": str(path)}) as client:
        assert client.url == f"unix:{path}"
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
        async with shoal.connect(client.url) as remote:
            assert await remote.list_backends() == {}
    assert not path.exists()


async def test_a_unix_socket_that_others_can_open_has_no_admin_api_without_a_token(tmp_path):
    path = tmp_path / "server.sock"
    http = {"uds": str(path), "uds_mode": "660"}
    async with shoal.start(http=http) as client:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        with pytest.raises(ConnectionError, match="no admin API"):
            async with shoal.connect(client.url):
                pass
    async with (
        shoal.start(http={**http, "token": "s3cret"}) as client,
        shoal.connect(client.url, token="s3cret") as remote,
    ):
        assert await remote.list_backends() == {}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_without_a_token_nobody_operates_at_a_port(host):
    async with shoal.start(http={**FREE, "host": host}) as client:
        url = f"http://127.0.0.1:{client.url.rpartition(':')[2]}"
        assert (await talk(url, "/-/healthz")).status_code == 200
        # A relay that adds no header looks like a program of this machine, whoever is behind it.
        headers = {"host": "localhost"}
        assert (await talk(url, "/-/api/shutdown", "POST", headers=headers)).status_code == 404
        assert await client.list_backends() == {}
        with pytest.raises(ConnectionError, match="with --admin-socket or --token-file"):
            async with shoal.connect(url):
                pass


async def test_import_paths_lead_only_to_code_of_the_allowed_modules():
    async with shoal.start(http=OPERATED) as client, operating(client.url) as remote:
        with pytest.raises(errors.NotAllowed):
            await remote.create_backend("b", "serving.plain_code:double")
    http = {**OPERATED, "allowed_modules": ["serving.plain_code"]}
    async with shoal.start(http=http) as client, operating(client.url) as remote:
        await remote.create_backend("b", "serving.plain_code:double")
        with pytest.raises(errors.ReplicaNotStarted, match="not in serving"):
            await remote.create_backend("imported", "serving.plain_code:accept_batch")


async def test_the_admin_socket_is_the_owners_and_needs_no_token(tmp_path):
    path = tmp_path / "admin.sock"
    async with shoal.start(http={**FREE, "admin_socket": str(path)}) as client:
        assert client.url.startswith("http://127.0.0.1:")
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
        await client.create_backend("b", double)
        async with shoal.connect(f"unix:{path}") as remote:
            assert set(await remote.list_backends()) == {"b"}
    assert not path.exists()


async def test_middlewares_stand_before_everything_the_first_outermost():
    passed = []

    def noting(name):
        def wrap(app):
            async def run(scope, receive, send):
                passed.append((name, scope["type"]))
                await app(scope, receive, send)

            return run

        return wrap

    http = {**FREE, "middlewares": [noting("outer"), noting("inner")]}
    async with shoal.start(http=http) as client:
        await talk(client.url, "/-/healthz")
    assert passed == [("outer", "http"), ("inner", "http")]


async def test_the_values_of_environment_variables_are_not_shown():
    env = {"MODEL_TOKEN": "s3cret"}
    async with shoal.start(http={**OPERATED, "allowed_modules": ["*"]}) as client:
        await client.create_backend(
            "b", "serving.plain_code:double", config={"env": env, **PROCESS}
        )
        bearer = {"authorization": "Bearer correct-horse"}
        shown = await talk(client.url, "/-/api/backends", headers=bearer)
        assert "MODEL_TOKEN" in shown.text
        assert "s3cret" not in shown.text
        [sent_back] = [one["env"] for one in shown.json().values()]
        change = {"env": sent_back, "retries": 1}
        path = "/-/api/backends/b"
        changed = await talk(client.url, path, "PATCH", json=change, headers=bearer)
        assert changed.status_code == 200
        config = await client.get_backend_config("b")
        assert (config.placed["env"], config.retries) == (env, 1)


async def test_every_option_reaches_the_application_or_the_server(monkeypatch):
    of_app = {
        "max_body_bytes": 1,
        "max_json_elements": 2,
        "send_timeout_s": 3.0,
        "answer_timeout_s": None,
        "heartbeat_s": 4.0,
        "overload_status": 429,
        "retry_after_s": 5,
        "debug": True,
    }
    given = HttpOptions(port=0, max_connections=6, keep_alive_timeout_s=7, **of_app)
    passed = []

    async def noting(app, options, **more):
        passed.extend([app, options])
        await serve_it(app, options, **more)

    serve_it = embedded.serve
    monkeypatch.setattr(embedded, "serve", noting)
    async with shoal.start(http=given):
        app, options = passed
    assert app.settings == HttpOptions(**of_app)
    assert options == given
