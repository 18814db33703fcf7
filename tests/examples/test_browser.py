"""The page of the browser example in a real browser, against the real server in a process."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from browser import NEEDS_CHROMIUM, chromium
from progress_lines import first_line

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    NEEDS_CHROMIUM,
]

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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        driver.set_script_timeout(LIMIT_S)
        yield driver


def test_the_page_reads_streams_and_results(browser, url):
    browser.get(url)

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


def test_an_event_source_that_reconnects_stops_and_gets_each_item_once(browser, url):
    browser.get(url)
    assert browser.execute_async_script(RECONNECT) == ["1", "2", "3"]
