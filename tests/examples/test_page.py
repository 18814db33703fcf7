"""The demo's page in a real browser, against the real server in a process of its own."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
CHROMEDRIVER = Path("/usr/bin/chromedriver")
LIMIT_S = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),  # a browser and a model are started within the first test
    pytest.mark.skipif(
        not (CHROMIUM.exists() and CHROMEDRIVER.exists()),
        reason=f"needs Chromium and its driver at {CHROMIUM} and {CHROMEDRIVER}",
    ),
]


@pytest.fixture(scope="module")
def url():
    server = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        try:
            for line in server.stdout:
                if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                    yield found[0]
                    break
            else:
                pytest.fail("the demo ended before it served")
        finally:
            server.send_signal(signal.SIGINT)
            rest = server.stdout.read()
    assert server.returncode == 0, rest


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1200,1000",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(CHROMEDRIVER)))
    yield driver
    driver.quit()


class Page:
    """The page as its user meets it."""

    def __init__(self, browser, url):
        self.browser = browser
        browser.get(url)
        self.until(lambda: len(self.all("#samples button")) == 10)

    def one(self, name):
        return self.browser.find_element(By.ID, name)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, name):
        return self.one(name).get_attribute("textContent")

    def enter(self, name, value):
        self.browser.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'));",
            self.one(name),
            value,
        )

    def until(self, condition):
        return WebDriverWait(self.browser, LIMIT_S, poll_frequency=0.02).until(
            lambda _: condition()
        )

    def complaints(self):
        return [entry["message"] for entry in self.browser.get_log("browser")]


@pytest.fixture
def page(browser, url):
    browser.get_log("browser")  # reading the log empties it
    return Page(browser, url)


def test_a_digit_drawn_with_the_pointer_is_read_and_its_batch_shown(page):
    pad = page.one("pad")
    up_and_down = ActionChains(page.browser, duration=20).move_to_element_with_offset(pad, 5, -90)
    up_and_down.click_and_hold()
    for _ in range(6):
        up_and_down.move_by_offset(0, 30)
    up_and_down.release().perform()
    page.until(lambda: page.text("digit") == "1")
    assert re.fullmatch(r"#\d+", page.text("batch-id"))
    assert page.text("batch-size") == "1"
    assert page.text("batch-reason") in {"full", "timer"}
    assert page.one("seen").get_attribute("aria-label").endswith("taken for a 1")
    best = page.all("#bars .best")
    assert [bar.text.split()[0] for bar in best] == ["1"]
    assert len(page.all("#recent i")) >= 1
    assert page.complaints() == []


def test_the_sample_digits_are_read_as_what_they_are(page):
    for digit, button in enumerate(page.all("#samples button")):
        button.click()
        page.until(lambda digit=digit: page.text("digit") == str(digit))


def test_clearing_leaves_nothing_of_the_answer(page):
    page.all("#samples button")[3].click()
    page.until(lambda: page.text("digit") == "3")
    page.one("clear").click()
    assert page.text("digit") == "\N{EN DASH}"
    assert page.all("#bars .best") == []
    assert page.one("seen").get_attribute("aria-label") == "Nothing drawn yet"


def test_images_sent_at_once_travel_together(page):
    page.one("many").click()
    page.until(lambda: page.one("many").is_enabled() and page.all("#recent i"))
    assert max(int(bar.text) for bar in page.all("#recent i")) > 1
    assert page.text("digits-error") == ""


@pytest.fixture
def slow_network(browser):
    def limit(bytes_a_second):
        browser.execute_cdp_cmd(
            "Network.emulateNetworkConditions",
            {
                "offline": False,
                "latency": 0,
                "downloadThroughput": bytes_a_second,
                "uploadThroughput": -1,
            },
        )

    browser.execute_cdp_cmd("Network.enable", {})
    limit(10_000)
    yield
    limit(-1)


def test_text_streams_in_and_stop_ends_it(page, slow_network):
    # At this temperature the model repeats itself without end: seconds, to be stopped within.
    page.enter("length", 5000)
    page.enter("temperature", 0)
    assert page.text("length-value") == "5000"
    page.one("write").click()
    page.until(lambda: len(page.text("written")) > 5)
    so_far = page.text("written")
    page.until(lambda: len(page.text("written")) > len(so_far))
    assert page.text("written").startswith(so_far)
    assert page.text("given") == "Return the "
    page.one("stop").click()
    page.until(lambda: page.text("status").startswith("Stopped"))
    assert page.one("write").is_enabled()
    assert not page.one("stop").is_enabled()
    assert 5 < len(page.text("written")) < 5000
    assert page.complaints() == []


def test_a_text_is_written_to_its_end(page):
    page.enter("length", 50)
    page.one("write").click()
    page.until(lambda: page.text("status").startswith("Done"))
    assert 0 < len(page.text("written")) <= 50
    assert page.text("text-error") == ""


def test_equal_seeds_write_equal_texts(page):
    page.enter("length", 50)
    page.enter("seed", 12)
    texts = []
    for _ in range(2):
        page.one("write").click()
        page.until(lambda: page.text("status").startswith("Done"))
        texts.append(page.text("written"))
    assert texts[0] == texts[1] != ""


def test_a_refusal_is_said_on_the_page(page):
    page.enter("prompt", "x" * 3000)
    page.one("write").click()
    page.until(lambda: page.text("text-error"))
    assert page.one("write").is_enabled()


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_nothing_sticks_out_at_any_width(page, width):
    page.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    try:
        assert page.browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_control_has_a_name(page):
    for control in page.all("button, input, textarea, [role=img], [role=region]"):
        assert control.accessible_name


def test_the_page_may_load_nothing_from_elsewhere(url):
    with urllib.request.urlopen(url) as answer:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        page = answer.read().decode()
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", page)


@pytest.mark.parametrize("image", [[[1]], [[17] * 8] * 8, "ink"])
def test_an_image_of_the_wrong_shape_or_ink_is_refused(url, image):
    request = urllib.request.Request(
        f"{url}digits",
        json.dumps(image).encode(),
        {"content-type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        assert answer.code == 422
        assert json.load(answer)["detail"]
