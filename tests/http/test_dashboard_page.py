"""The dashboard in a real browser, while a server works, ends and comes back."""

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from dashboard_app import HOSTILE
from described_server import described_server
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from browser import NEEDS_CHROMIUM, chromium

LIMIT_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.timeout(180),
    NEEDS_CHROMIUM,
]


class Server:
    """The server; it can end, and come back at the same port."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._running = ExitStack()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        self._running.enter_context(described_server("dashboard_app:app", "--port", str(self.port)))

    def end(self):
        self._running.close()

    def post(self, path, item, request_id="a"):
        headers = {"content-type": "application/json", "x-request-id": request_id}
        request = urllib.request.Request(self.url + path, json.dumps(item).encode(), headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def post_all(self, path, count):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: self.post(path, number), range(count)))


@pytest.fixture(scope="module")
def server():
    server = Server()
    server.start()
    yield server
    server.end()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    profile = tmp_path_factory.mktemp("chromium")
    with chromium(profile, height=1400, logs=["performance"]) as driver:
        driver.get("about:blank")
        yield driver


class Page:
    """The page; `text` and `until` look at it as a reader does."""

    def __init__(self, browser):
        self.browser = browser

    def text(self, selector):
        found = self.browser.find_elements(By.CSS_SELECTOR, selector)
        return found[0].text if found else ""

    def until(self, condition):
        waiting = WebDriverWait(
            self.browser, LIMIT_S, 0.1, ignored_exceptions=[StaleElementReferenceException]
        )
        return waiting.until(lambda _: condition())

    def run(self, script, *given):
        return self.browser.execute_script(script, *given)

    def complaints(self):
        return self.browser.get_log("browser")


@pytest.fixture(scope="module")
def opened(browser, server):
    browser.get_log("performance")  # what was before
    browser.get(f"{server.url}/-/dashboard")
    return Page(browser)


@pytest.fixture
def page(opened, server):
    """The page, live; the browser has had nothing to complain of, and asked no other host."""
    opened.until(lambda: opened.text("#live") == "Live")
    opened.complaints()
    yield opened
    assert opened.complaints() == []
    messages = [json.loads(entry["message"]) for entry in opened.browser.get_log("performance")]
    asked = {
        message["message"]["params"]["request"]["url"]
        for message in messages
        if message["message"]["method"] == "Network.requestWillBeSent"
    }
    assert {one for one in asked if not one.startswith((f"{server.url}/-/dashboard", "data:"))} == (
        set()
    )


def row_of(page, kind, name):
    """The texts of the row of a backend or an endpoint; nothing if there is no such row."""
    return page.until(lambda: [_text_of(page, f"#{kind} .row", name)])[0]


def lane_of(page, name):
    """The texts of the lane of a backend."""
    return page.until(lambda: _text_of(page, "#lanes .lane", name))


def canvas_of(page, name):
    """The picture in the lane of a backend."""
    return _found(page, "#lanes .lane", name).find_element(By.TAG_NAME, "canvas")


def _found(page, selector, name):
    found = page.browser.find_elements(By.CSS_SELECTOR, selector)
    return next((each for each in found if each.text.startswith(f"{name}\n")), None)


def _text_of(page, selector, name):
    found = _found(page, selector, name)
    return found.text if found else ""


# Whether a canvas has a pixel of the colour that a custom property of the page names.
HAS_COLOUR = """
const [canvas, name] = arguments;
const probe = document.createElement("canvas").getContext("2d");
probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
probe.fillRect(0, 0, 1, 1);
const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
for (let at = 0; at < data.length; at += 4) {
  if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) {
    return true;
  }
}
return false;
"""


def test_the_numbers_are_right_while_requests_run(page, server):
    before = int(re.search(r"Requests\n(\d+)", row_of(page, "backends", "fours"))[1])
    server.post_all("/fours", 80)
    page.until(lambda: f"Requests\n{before + 80}" in row_of(page, "backends", "fours"))
    page.until(lambda: "4.0 of 4 requests" in lane_of(page, "fours"))
    assert "100 %: it was full" in lane_of(page, "fours")
    label = page.until(lambda: canvas_of(page, "fours").accessible_name)
    assert label.startswith("fours: 4.0 of 4 requests; ran ")
    page.until(lambda: page.run(HAS_COLOUR, canvas_of(page, "fours"), "--full"))
    endpoint = row_of(page, "endpoints", "fours")
    assert f"Requests\n{before + 80}" in endpoint
    assert "fours 100 %" in endpoint
    page.until(lambda: f"next: 100 % agree of {before + 80}" in row_of(page, "endpoints", "fours"))
    assert page.browser.find_elements(By.CSS_SELECTOR, ".chart canvas")


def test_who_is_in_a_continuous_batch_is_shown(page, server):
    leave = threading.Event()
    began = threading.Event()

    def read():
        request = urllib.request.Request(
            f"{server.url}/write", b"1", {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            answer.readline()
            began.set()
            leave.wait(LIMIT_S)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert began.wait(LIMIT_S)
        page.until(lambda: "1 of 8 places taken" in lane_of(page, "write"))
        page.until(lambda: "Streams open\n1" in page.text("#figures"))
    finally:
        leave.set()
        reader.join()
    page.until(lambda: "0 of 8 places taken" in lane_of(page, "write"))
    page.until(lambda: "1 left" in lane_of(page, "write"))


def test_hostile_names_stay_text(page, server):
    with pytest.raises(urllib.error.HTTPError):
        server.post("/hostile", 1, "an-id:1.2")
    page.until(lambda: HOSTILE in page.text("#failures .row b"))
    assert "1 request in hostile, batch 1" in page.text("#failures .row")
    assert "an-id:1.2" in page.text("#failures .row .ids")
    assert page.text("h1") == HOSTILE
    assert HOSTILE in page.browser.title
    assert HOSTILE in row_of(page, "backends", "hostile")
    assert page.browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert "secret" not in page.run("return document.documentElement.outerHTML")


def test_one_batcher_can_be_chosen_for_the_charts_and_the_timeline_be_paused(page):
    Select(page.browser.find_element(By.ID, "chosen")).select_by_value("fours")
    page.until(lambda: page.text(".chart .legend").startswith("fours"))
    Select(page.browser.find_element(By.ID, "chosen")).select_by_value("")
    pause = page.browser.find_element(By.ID, "pause")
    pause.click()
    assert (pause.get_attribute("aria-pressed"), pause.text) == ("true", "Go on")
    pause.click()
    assert (pause.get_attribute("aria-pressed"), pause.text) == ("false", "Pause")


def test_the_charts_show_the_busiest_batchers_and_say_so(page, server):
    server.post_all("/last", 20)
    page.until(lambda: "last" in page.text(".chart .legend").split())
    assert "idle3" not in page.text(".chart .legend").split()
    assert page.text("#chosen option") == "all batchers (lines: the 7 busiest)"


def test_it_is_dark_where_the_reader_wants_that(page):
    def ground(scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        return page.run("return getComputedStyle(document.body).backgroundColor")

    assert ground("dark") != ground("light")


def test_nothing_sticks_out_at_any_width(page):
    for width in (320, 390, 768, 1200):
        page.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        wide = page.run("return document.documentElement.scrollWidth")
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert wide <= width


def test_it_survives_the_end_of_its_server_and_comes_back_to_it(opened, server):
    page = opened
    page.until(lambda: page.text("#live") == "Live")
    server.post_all("/fours", 4)
    server.end()
    page.until(lambda: page.text("#live") == "The server is unreachable; trying again")
    server.start()
    page.until(lambda: page.text("#live") == "Live")
    page.until(lambda: "Requests\n0" in row_of(page, "backends", "fours"))
    assert page.text("#failures") == "None since the server started."
    server.post_all("/fours", 8)
    page.until(lambda: "Requests\n8" in row_of(page, "backends", "fours"))
    page.until(lambda: "4.0 of 4 requests" in lane_of(page, "fours"))
    # Only that nobody answered, meanwhile.
    assert {entry["source"] for entry in page.complaints()} <= {"network"}
