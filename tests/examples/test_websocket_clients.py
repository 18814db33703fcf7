"""The examples of WebSocket clients, against the real server in a process."""

import importlib.util
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from progress_lines import first_line

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def url():
    with subprocess.Popen(
        [sys.executable, "-m", "shoal", "serve", "examples.browser.app:app", "--port", "0"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield re.search(r"http://\S+", first_line(server.stderr))[0]
        finally:
            server.send_signal(signal.SIGINT)
            said = server.stderr.read()
    assert "0 cut off" in said


def printed_by(example, url):
    command = [sys.executable, f"examples/websocket/{example}", url]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_with_websockets(url):
    found = printed_by("with_websockets.py", url.replace("http", "ws"))
    assert found == ["[(3, 9), (4, 16), (5, 25)]", "1", "2", "3"]


@pytest.mark.skipif(importlib.util.find_spec("httpx_ws") is None, reason="needs httpx-ws")
def test_the_example_with_httpx_ws(url):
    *results, cancelled = printed_by("with_httpx_ws.py", url)
    assert sorted(results) == ["1 9", "2 The body does not fit the endpoint"]
    assert cancelled == "The client has cancelled the request"
