"""``--workers``: the command line, signals, and the ends of the processes."""

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress

import pytest
from processes import accepts, ask, end_of

from certificates import new_certificate
from progress_lines import first_line
from time_limits import HANG_S
from worker_processes import children_of, is_worker, workers_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

APP = """\
import anyio
import shoal

app = shoal.App()


@app.endpoint("/double")
async def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


@app.endpoint("/wait")
async def wait(items: list[float]) -> list[float]:
    await anyio.sleep(items[0])
    return items
"""


SERVED = "code:app"


@pytest.fixture
def directory(terminal):
    (terminal.directory / "code.py").write_text(APP)
    return terminal.directory


@contextmanager
def asked_meanwhile(port, item):
    """A client that waits for its answer; the server has its request."""
    body = str(item)
    head = "POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: f"{ONGOING} 1.0" in metrics(port))
        yield client


ONGOING = 'shoal_replica_running_requests{backend="wait",replica="wait#0"}'


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/metrics", timeout=HANG_S) as answer:
        return answer.read().decode()


def read_all(client):
    with client.makefile("rb") as received:
        return received.read()


def until(is_so):
    ends = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_signal_drains_all(serving, loop):
    with serving("--workers", "2", "--event-loop", loop) as (process, port):
        assert ask(port, "/double", 4) == (200, 8)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        with asked_meanwhile(port, 1) as client:
            process.send_signal(signal.SIGTERM)
            assert read_all(client).endswith(b"1.0")
        said = end_of(process)
    assert "Shoal served " in said
    assert " finished, 0 cut off" in said
    assert not any(map(is_worker, workers))


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_a_second_signal_ends_all_at_once(serving, loop):
    with serving("--workers", "1", "--event-loop", loop) as (process, port):
        workers = workers_of(process.pid)
        with asked_meanwhile(port, 10):
            process.send_signal(signal.SIGINT)
            until(lambda: not accepts(port))
            end_of(process, signal.SIGINT, code=128 + signal.SIGINT)
            until(lambda: not any(map(is_worker, workers)))


def test_workers_end_with_a_server_that_is_killed_and_refuse_its_requests(serving):
    with serving("--workers", "1") as (process, port):
        workers = workers_of(process.pid)
        with asked_meanwhile(port, 10) as client:
            process.kill()
            assert_is_refused(read_all(client))
        until(lambda: not any(map(is_worker, workers)))
        _, said = process.communicate(timeout=HANG_S)
        assert "the server's process has ended, and its worker ends as well" in said


def assert_is_refused(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "http/1.1 503 service unavailable"
    assert "retry-after: 1" in lines
    assert json.loads(body)["type"] == "urn:shoal:problem:closed"


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_requests_that_come_after_the_kill_are_refused_at_once(serving, loop):
    body = b"4"
    sent = (
        b"POST /double HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with serving("--workers", "1", "--event-loop", loop) as (process, port):
        [worker] = workers_of(process.pid)
        with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
            client.sendall(sent)
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            os.kill(worker, signal.SIGSTOP)  # so that it learns of both at once
            process.kill()
            process.wait(HANG_S)
            client.sendall(sent)
            os.kill(worker, signal.SIGCONT)
            assert_is_refused(read_all(client))


def test_ctrl_c_of_a_terminal_is_for_the_server(terminal, directory):
    """It reaches all processes of the terminal's group."""
    process = terminal.popen(
        "serve", "code:app", "--port", "0", "--workers", "1", start_new_session=True
    )
    try:
        assert first_line(process.stderr).startswith("Shoal serving ")
        os.killpg(process.pid, signal.SIGINT)
        said = end_of(process)
        assert "Traceback" not in said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_file_says_how_many_a_token_opens_the_admin_api_and_a_command_stops_all(
    terminal, directory
):
    text = '[server]\nport = 0\nworkers = 2\n[backends.b]\ncode = "code:double"\n[endpoints.b]\n'
    (directory / "app.toml").write_text(text + 'route = "/b"\nbackend = "b"\n')
    (directory / "token").write_text("s3cret-s3cret-s3cret")
    (directory / "token").chmod(0o600)
    with terminal.serving("start", "app.toml", "--token-file", "token") as (process, port):
        assert ask(port, "/b", 4) == (200, 8)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        url = f"http://127.0.0.1:{port}/-/api/backends"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=HANG_S)
        bearer = {"authorization": "Bearer s3cret-s3cret-s3cret"}
        asked = urllib.request.Request(url, headers=bearer)
        with urllib.request.urlopen(asked, timeout=HANG_S) as answer:
            assert '"b"' in answer.read().decode()
        terminal.told_here("stop")
        process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert not any(map(is_worker, workers))


def test_a_version_that_is_reloaded_has_its_workers(terminal, directory):
    arguments = ["--reload", "--workers", "1"]
    with terminal.serving("serve", "code:app", "--port", "0", *arguments) as (process, port):
        assert ask(port, "/double", 4) == (200, 8)
        [version] = [one for one in children_of(process.pid) if workers_of(one)]
        workers = workers_of(version)
        end_of(process, signal.SIGTERM)
    assert not any(map(is_worker, workers))


def test_a_worker_whose_certificate_is_gone_says_so_in_a_line(serving, directory):
    files = new_certificate(directory)
    given = ("--certfile", files["certfile"], "--keyfile", files["keyfile"])
    with serving("--workers", "1", *given) as (process, _):
        os.unlink(files["certfile"])
        [worker] = workers_of(process.pid)
        os.kill(worker, signal.SIGKILL)
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "Traceback" not in said
    assert f"shoal: a worker can't use the certificate in {files['certfile']}" in said
    assert "a worker exited with code 1 before it could serve" in said
