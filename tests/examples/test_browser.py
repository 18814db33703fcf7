"""The page of the browser example in a real browser, against the real server in a process."""

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from browser import NEEDS_CHROMIUM

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


def test_an_event_source_that_reconnects_stops_and_gets_each_item_once(browser, browser_app):
    browser.get(browser_app)
    assert browser.execute_async_script(RECONNECT) == ["1", "2", "3"]
