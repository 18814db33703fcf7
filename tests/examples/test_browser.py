"""The browser example in a process: its page in a real browser, and clients of its WebSocket."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from browser import NEEDS_CHROMIUM

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

pytestmark = pytest.mark.slow

# Counts the requests of an EventSource that the page does not close.
RECONNECT = """
    const done = arguments[arguments.length - 1];
    const source = new EventSource("/count?numbers=3");
    const items = [];
    source.onmessage = (event) => items.push(event.data);
    source.onerror = () => {
        if (source.readyState === EventSource.CLOSED) done(items);
    };
"""


@NEEDS_CHROMIUM
def test_the_page_reads_streams_and_results(browser, browser_app):
    browser.get(browser_app)

    def shows(name, text):
        found = browser.find_element(By.ID, name)
        wait = WebDriverWait(browser, LIMIT_S, poll_frequency=0.02)
        wait.until(lambda _: found.get_attribute("textContent") == text)

    shows("events", " 1 2 3 4 5")
    shows("events-state", "complete")
    shows("first", "done")
    shows("second", " 1 2 3 4")
    shows("squares", " 9 16")
    shows("failure", "The body does not fit the endpoint")
    shows("cancelled", "The client has cancelled the request")
    errors = [entry["message"] for entry in browser.get_log("browser")]
    assert [each for each in errors if "favicon" not in each] == []


@NEEDS_CHROMIUM
def test_an_event_source_that_reconnects_stops_and_gets_each_item_once(browser, browser_app):
    browser.get(browser_app)
    assert browser.execute_async_script(RECONNECT) == ["1", "2", "3"]


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
