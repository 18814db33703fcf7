"""The examples of WebSocket clients, against the real server in a process."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def printed_by(example, url):
    command = [sys.executable, f"examples/websocket/{example}", url]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_with_websockets(browser_app):
    found = printed_by("with_websockets.py", browser_app.replace("http", "ws"))
    assert found == ["[(3, 9), (4, 16), (5, 25)]", "1", "2", "3"]


@pytest.mark.skipif(importlib.util.find_spec("httpx_ws") is None, reason="needs httpx-ws")
def test_the_example_with_httpx_ws(browser_app):
    *results, cancelled = printed_by("with_httpx_ws.py", browser_app)
    assert sorted(results) == ["1 9", "2 The body does not fit the endpoint"]
    assert cancelled == "The client has cancelled the request"
