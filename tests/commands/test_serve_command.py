"""`shoal serve` of files, what it has for the operator, and its end with requests under way."""

import gc
import http.client
import itertools
import json
import os
import re
import signal
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import ask, end_of

from shoal.asgi.http_options import HttpOptions
from shoal.commands.server import process as server_process
from time_limits import HANG_S
from worker_processes import children_of

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
CLIENTS = 8
DRAINED = """\
from collections.abc import AsyncIterator

import anyio
import shoal

draining = anyio.Event()


class DrainedApp(shoal.App):
    def begin_drain(self) -> None:
        super().begin_drain()
        draining.set()


app = DrainedApp()


@app.endpoint("/work", name="work", max_batch_size=2)
async def work(items: list[str]) -> list[str]:
    await draining.wait()
    return items


@app.endpoint("/steps", name="steps", max_batch_size=1)
async def steps(names: list[str]) -> AsyncIterator[list[str]]:
    yield names
    await draining.wait()
    yield names
"""
WITH_PROCESSES = """\
import time

import shoal

app = shoal.App()


class Work:
    def __call__(self, items: list[int]) -> list[int]:
        time.sleep(0.01)
        with open("ran", "a") as ran:
            ran.write("".join(f"{item}\\n" for item in items))
        return items


app.backend("work", Work, placement="process", num_replicas=2, max_batch_size=4)
app.route("work", backend="work", path="/work")
"""


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
    err = terminal.failed_here("serve", "app.toml", code=2)
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
    err = terminal.failed("serve", "app.toml", "--port", "0")
    assert "there is no module 'absent'" in err
    assert err.splitlines()[-1].startswith("shoal: the application did not start: ")


def test_the_admin_socket_is_for_its_user_alone(serving, terminal, directory):
    with serving("--admin-socket", "admin.sock") as (_, port):
        assert stat.S_IMODE(os.stat(directory / "admin.sock").st_mode) == 0o600
        url = f"unix:{directory}/admin.sock"
        terminal.told_here("traffic", "set", "large", "small=1", "--url", url)
        assert ask(port, "/large", 2) == (200, 7)
        assert ask(port, "/-/api/status")[0] == 404, "without a token the port has no admin API"
        given = ("--port", "0", "--admin-socket", "admin.sock")
        err = terminal.failed("serve", "app.toml", *given)
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
    err = terminal.failed_here("serve", "other:app", *options, code=2)
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
    err = terminal.failed("serve", "app:app", "--port", "0", "--state", "file.db")
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


@pytest.fixture(params=["trio", "asyncio"])
def served(terminal, request):
    (terminal.directory / "drained.py").write_text(DRAINED)
    command = ("serve", "drained:app", "--port", "0", "--event-loop", request.param)
    with terminal.serving(*command) as (process, port):
        yield process, port


def until_some_run(port):
    """Asks until all requests are there, and some of them run; gives how many are queued."""
    while True:
        work = ask(port, "/-/readyz")[1]["endpoints"]["work"]
        if work["running"] and work["queued"] + work["running"] == CLIENTS:
            return work["queued"]


def test_a_signal_lets_queued_and_running_requests_finish(served):
    process, port = served
    with ThreadPoolExecutor(CLIENTS) as threads:
        answers = [threads.submit(ask, port, "/work", f"{nth}") for nth in range(CLIENTS)]
        assert until_some_run(port) > 0
        process.send_signal(signal.SIGTERM)
        assert [one.result() for one in answers] == [(200, f"{nth}") for nth in range(CLIENTS)]
    said = end_of(process)
    assert f": {CLIENTS} finished, 0 cut off\n" in said
    total = re.search(r"^Shoal served ([\d,]+) requests, ", said, re.MULTILINE)[1]
    assert int(total.replace(",", "")) >= CLIENTS


def test_readiness_turns_503_while_draining(served):
    """The next request on the connection of a stream that ends in the drain asks for readiness."""
    process, port = served
    head = b"POST /steps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
        client.sendall(head + b'Content-Length: 3\r\n\r\n"a"')
        talk = b""
        while b"data: " not in talk:
            talk += client.recv(2**16)
        client.sendall(b"GET /-/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        process.send_signal(signal.SIGTERM)
        with client.makefile("rb") as rest:
            talk += rest.read()
    stream, _, readiness = talk.partition(b"event: end")
    assert stream.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 503" in readiness
    assert b'"status":"draining"' in readiness
    assert end_of(process).count("2 finished, 0 cut off") == 1


def test_under_load_each_request_that_was_taken_runs_once_and_no_replica_is_left(terminal):
    (terminal.directory / "loaded.py").write_text(WITH_PROCESSES)
    numbers, answered, is_warm = itertools.count(), [], threading.Event()

    def call_on(port):
        while True:
            number = next(numbers)
            try:
                assert ask(port, "/work", number) == (200, number)
            except OSError as error:  # it could not connect any more
                return error
            answered.append(number)
            if number > 4 * CLIENTS:
                is_warm.set()

    with terminal.serving("serve", "loaded:app", "--port", "0") as (process, port):
        with ThreadPoolExecutor(CLIENTS) as threads:
            ends = [threads.submit(call_on, port) for _ in range(CLIENTS)]
            assert is_warm.wait(HANG_S)
            replicas = children_of(process.pid)
            process.send_signal(signal.SIGTERM)
            kinds = {type(end.result()) for end in ends}
        end_of(process)
    assert kinds <= {ConnectionRefusedError, ConnectionResetError}
    assert len(replicas) == 2
    assert not any(map(is_running, replicas))
    ran = (terminal.directory / "ran").read_text().split()
    assert sorted(map(int, ran)) == sorted(answered)


def is_running(pid):
    """Whether there is a process, and not only its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
