"""`shoal serve` of files, and what it has for the operator."""

import gc
import http.client
import json
import os
import signal
import stat

import pytest
from processes import ask, end_of

from shoal.asgi.http_options import HttpOptions
from shoal.commands.server import process as server_process
from time_limits import HANG_S

pytestmark = pytest.mark.real_time

APP = """\
[server]
port = 1
max_body_bytes = 10

[backends.small]
code = "driven_models:Scaler"
init_args = [3]
init_kwargs = { plus = 1 }

[backends.large]
code = "my_models:large"
placement = "thread"

[endpoints.scale]
route = "/scale"
methods = ["PUT", "POST"]
backend = "small"

[endpoints.large]
route = "/large"
traffic = { large = 1 }
"""

OTHER = """\
async def app(scope, receive, send):
    pass
"""


SERVED = "app.toml"


@pytest.fixture
def directory(terminal):
    (terminal.directory / "app.toml").write_text(APP)
    (terminal.directory / "other.py").write_text(OTHER)
    (terminal.directory / "my_models.py").write_text("def large(x: int) -> int:\n    return -x\n")
    return terminal.directory


def test_what_a_file_declares_is_served_until_a_signal_drains_it(serving):
    with serving() as (process, port):
        assert port != 1, "the command line goes before the file"
        assert ask(port, "/scale", 2) == (200, 7)
        assert ask(port, "/large", 2) == (200, -2)
        status, problem = ask(port, "/scale", "x" * 20)
        assert (status, problem["status"]) == (413, 413)
        said = end_of(process, signal.SIGTERM)
    assert " requests, drained in " in said


def test_a_graceful_timeout_longer_than_a_thread_can_sleep_is_taken(serving):
    with serving("--graceful-timeout", "1e10") as (process, _):
        said = end_of(process, signal.SIGTERM)
    assert "Traceback" not in said


def test_an_application_that_exits_on_import_ends_the_command(terminal, directory):
    (directory / "exits.py").write_text("import sys\nsys.exit('set MODEL_PATH')\n")
    assert terminal.run("serve", "exits:app") == (1, "", "set MODEL_PATH\n")


def test_the_mistakes_of_a_file_are_told_each_in_a_line(terminal, directory):
    (directory / "app.toml").write_text("[backends.b]\n[server]\nport = -1")
    code, _, err = terminal.run_here("serve", "app.toml")
    assert code == 2
    assert err.splitlines() == [
        'shoal: app.toml:1: backends.b: has no code; write code = "package.module:Name"',
        "shoal: app.toml:3: server.port: port must be at least 0, not -1",
    ]


@pytest.mark.parametrize("application", ["inner/served.py", "inner/app.toml"])
def test_processes_find_the_modules_beside_the_file(application, terminal):
    inner = terminal.directory / "inner"
    inner.mkdir()
    (inner / "beside_it.py").write_text("def large(x: int) -> int:\n    return -x\n")
    (inner / "app.toml").write_text(
        '[backends.b]\ncode = "beside_it:large"\nplacement = "process"\n'
        '[endpoints.large]\nroute = "/large"\nbackend = "b"\n'
    )
    (inner / "served.py").write_text(
        "import shoal\n\napp = shoal.App()\n"
        'app.backend("b", "beside_it:large", placement="process")\n'
        'app.route("large", path="/large", backend="b")\n'
    )
    with terminal.serving("serve", application, "--port", "0") as (_, port):
        assert ask(port, "/large", 2) == (200, -2)


def test_code_that_is_not_there_is_told(terminal, directory):
    (directory / "app.toml").write_text('[backends.b]\ncode = "absent:b"')
    code, _, err = terminal.run("serve", "app.toml", "--port", "0")
    assert code == 1
    assert "there is no module 'absent'" in err
    assert err.splitlines()[-1].startswith("shoal: the application did not start: ")


def test_the_admin_socket_is_for_its_user_alone(serving, terminal, directory):
    with serving("--admin-socket", "admin.sock") as (_, port):
        assert stat.S_IMODE(os.stat(directory / "admin.sock").st_mode) == 0o600
        url = f"unix:{directory}/admin.sock"
        terminal.told_here("traffic", "set", "large", "small=1", "--url", url)
        assert ask(port, "/large", 2) == (200, 7)
        assert ask(port, "/-/api/status")[0] == 404, "without a token the port has no admin API"
        code, _, err = terminal.run(
            "serve", "app.toml", "--port", "0", "--admin-socket", "admin.sock"
        )
    assert code == 1
    assert err == f"shoal: can't listen at {directory}/admin.sock: another server listens there\n"


def test_with_a_token_the_port_has_the_admin_api(serving, terminal, directory):
    (directory / "token").write_text("s3cret")
    with serving("--token-file", "token") as (_, port):
        url = ("--url", f"http://127.0.0.1:{port}")
        assert terminal.run_here("status", *url)[0] == 1
        status = json.loads(terminal.told_here("status", *url, "--token-file", "token", "--json"))
        assert set(status["backends"]) == {"small", "large"}
        assert ask(port, "/scale", 2) == (200, 7)


def test_what_was_changed_is_there_again_with_a_state_file(serving, terminal, directory):
    options = ("--state", "file.db", "--admin-socket", "admin.sock")
    with serving(*options):
        url = f"unix:{directory}/admin.sock"
        terminal.told_here("traffic", "set", "large", "small=1", "--url", url)
    with serving(*options) as (_, port):
        assert ask(port, "/large", 2) == (200, 7)


@pytest.mark.parametrize(
    "options", [["--state", "file.db"], ["--admin-socket", "s"], ["--token-file", "token"]]
)
def test_what_is_for_our_applications_is_refused_for_others(options, terminal, directory):
    (directory / "token").write_text("s3cret")
    code, _, err = terminal.run_here("serve", "other:app", *options)
    assert code == 2
    assert err.startswith(f"shoal: other:app is not a shoal.App; leave out {options[0]}, for ")


ASYNCIO_CODE = """\
import asyncio

import anyio
import shoal

app = shoal.App()


@app.endpoint("/e")
async def e(items: list[int]) -> list[int]:
    # A library may run a loop of its own in a thread, as in a program of `asyncio.run`.
    await asyncio.to_thread(anyio.run, anyio.sleep, 0)
    return items


async def one(item: int) -> int:
    await asyncio.sleep(0)
    return item
"""
ASYNCIO_FILE = """\
[server]
event_loop = "asyncio"

[backends.e]
code = "code:one"

[endpoints.e]
route = "/e"
backend = "e"
"""


@pytest.mark.parametrize("words", ["serve code:app --event-loop asyncio", "start asyncio.toml"])
def test_code_for_asyncio_is_served_where_the_command_or_a_file_says_so(words, terminal):
    (terminal.directory / "code.py").write_text(ASYNCIO_CODE)
    (terminal.directory / "asyncio.toml").write_text(ASYNCIO_FILE)
    with terminal.serving(*words.split(), "--port", "0") as (_, port):
        assert ask(port, "/e", 2) == (200, 2)


def test_code_for_another_event_loop_is_told_the_option(terminal):
    (terminal.directory / "code.py").write_text(ASYNCIO_CODE)
    with terminal.serving("serve", "code:app", "--port", "0") as (process, port):
        assert ask(port, "/e", 2)[0] == 500
        said = end_of(process, signal.SIGTERM)
    assert "start it with --event-loop asyncio" in said


WRAPPED = """\
import shoal
from starlette.middleware.cors import CORSMiddleware

app = shoal.App()


@app.endpoint("/double")
async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


app = CORSMiddleware(app, allow_origins=["https://page.example"])
"""


def origin_allowed(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    headers = {"content-type": "application/json", "origin": "https://page.example"}
    connection.request("POST", "/double", "2", headers)
    response = connection.getresponse()
    assert response.read() == b"4"
    connection.close()
    return response.getheader("access-control-allow-origin")


def test_an_application_with_middleware_around_it_is_checked_served_and_operated(terminal):
    (terminal.directory / "wrapped.py").write_text(WRAPPED)
    assert "/double" in terminal.told_here("check", "wrapped:app")
    page = ("--port", "0", "--allow-origin", "https://page.example")
    options = (*page, "--admin-socket", "admin.sock", "--access-log")
    with terminal.serving("serve", "wrapped:app", *options) as (process, port):
        url = f"unix:{terminal.directory}/admin.sock"
        assert terminal.told_here("call", "double", "2", "--url", url).strip() == "4"
        assert origin_allowed(port) == "https://page.example"
        *of_the_operator, last = [json.loads(process.stderr.readline()) for _ in range(3)]
        assert all(line["path"].startswith("/-/api/") for line in of_the_operator)
        assert (last["path"], last["status"]) == ("/double", 200)
    with terminal.serving("start", "wrapped:app", *page) as (_, port):
        assert "double" in terminal.told_here("status")
        assert origin_allowed(port) == "https://page.example"
        terminal.told_here("stop")


def test_code_that_no_state_file_can_keep_is_told_in_a_line(terminal, directory):
    (directory / "app.py").write_text(
        "import shoal\n\napp = shoal.App()\n\n\n@app.endpoint('/x', name='x')\n"
        "def double(items: list[int]) -> list[int]:\n    return items\n"
    )
    code, _, err = terminal.run("serve", "app:app", "--port", "0", "--state", "file.db")
    assert code == 1
    assert err.startswith("shoal: the application did not start: the endpoint /x could not be ")
    assert "give an import path" in err
    assert len(err.splitlines()) == 1


def test_the_token_is_not_shown():
    run = server_process.ServerProcess(
        app=None, spec="app:app", options=HttpOptions(token="s3cret")
    )
    assert "s3cret" not in repr(run)


def test_garbage_is_looked_for_less_often_unless_somebody_has_said_how_often(monkeypatch):
    before = gc.get_threshold()
    try:
        gc.set_threshold(700)
        monkeypatch.setattr(server_process, "_COLLECTED_AFTER", gc.get_threshold())
        server_process.collect_less_often()
        assert gc.get_threshold()[0] == 10_000
        gc.set_threshold(5)
        server_process.collect_less_often()
        assert gc.get_threshold()[0] == 5
    finally:
        gc.set_threshold(*before)
