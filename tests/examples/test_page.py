"""The demo's page in a real browser, against the real server in a process of its own."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from browser import NEEDS_CHROMIUM, widths_that_overflow

ROOT = Path(__file__).parents[2]
FEW, USUAL = 4, 48
LIMIT_S = 100  # a worker that starts anew, or a text that waits for its place, on a busy machine

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def announced():
    """What the demo prints when it is up; it runs until the tests are through."""
    server = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        lines = []
        try:
            for line in server.stdout:
                lines.append(line.strip())
                if line.startswith("Ctrl-C"):
                    yield lines
                    break
            else:
                pytest.fail("the demo ended before it served")
        finally:
            server.send_signal(signal.SIGINT)
            rest = server.stdout.read()
    assert server.returncode == 0, rest
    last = rest.splitlines()[-1]
    assert re.match(r"Ended: [\d,]+ HTTP requests were served, and .* had [\d,]+ calls", last)


@pytest.fixture(scope="module")
def url(announced):
    (found,) = (word for line in announced for word in re.findall(r"is at (http://\S+/)", line))
    return found


class Page:
    def __init__(self, browser, url=None):
        self.browser = browser
        if url is not None:
            browser.get(url)
            self.until(lambda: len(self.all("#samples button")) == 10)

    def one(self, name):
        return self.browser.find_element(By.ID, name)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def now(self, selector, property_):
        """A property of all elements at one moment; those that are redrawn can't be held on to."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e[arguments[1]])"
        return self.browser.execute_script(script, selector, property_)

    def text(self, name):
        return self.one(name).get_attribute("textContent")

    def figure(self, side, name):
        (figure,) = self.all(f"#{side} [data-figure={name}]")
        return figure.get_attribute("textContent")

    def enter(self, name, value):
        self.browser.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'));",
            self.one(name),
            value,
        )

    def until(self, condition):
        return WebDriverWait(self.browser, LIMIT_S, poll_frequency=0.05).until(
            lambda _: condition()
        )

    def complaints(self):
        return [entry["message"] for entry in self.browser.get_log("browser")]


@pytest.fixture
def page(browser, url):
    browser.get_log("browser")  # reading the log empties it
    page = Page(browser, url)
    page.enter("clients", FEW)  # a full crowd takes a processor
    return page


@pytest.fixture
def opened(browser, url):
    """The page as the test before left it: for what does not depend on its settings."""
    browser.get_log("browser")
    if browser.current_url == url:
        return Page(browser)
    page = Page(browser, url)
    page.enter("clients", FEW)
    return page


def test_a_digit_drawn_with_the_pointer_is_read_and_its_batch_shown(page):
    pad = page.one("pad")
    up_and_down = ActionChains(page.browser, duration=20).move_to_element_with_offset(pad, 5, -90)
    up_and_down.click_and_hold()
    for _ in range(6):
        up_and_down.move_by_offset(0, 30)
    up_and_down.release().perform()
    page.until(lambda: page.text("digit") == "1")
    assert re.fullmatch(r"#\d+", page.text("batch-id"))
    assert int(page.text("batch-size")) >= 1
    assert page.text("batch-reason") in {"full", "timer", "regather"}
    assert page.one("seen").get_attribute("aria-label").endswith("recognised as a 1")
    best = page.all("#bars .best")
    assert [bar.text.split()[0] for bar in best] == ["1"]
    assert page.complaints() == []


def test_the_sample_digits_are_read_as_what_they_are_until_they_are_cleared(opened):
    for digit, button in enumerate(opened.all("#samples button")[:3]):
        button.click()
        opened.until(lambda digit=digit: opened.text("digit") == str(digit))
    opened.one("clear").click()
    assert opened.text("digit") == "\N{EN DASH}"
    assert opened.all("#bars .best") == []
    assert opened.one("seen").get_attribute("aria-label") == "Nothing drawn yet"


def account(page):
    """The equation under the timelines, as numbers by their words."""
    return {
        word: int(number.replace(",", ""))
        for number, word in re.findall(r"([\d,]+) (\w+)", page.text("account"))
    }


def test_the_crowd_runs_when_the_page_is_opened_and_no_call_goes_missing(page):
    page.enter("clients", USUAL)
    page.until(lambda: account(page).get("answered", 0) > 0)
    counted = account(page)
    assert counted["asked"] == sum(
        counted[end] for end in ("answered", "failed", "left", "waiting")
    )
    assert page.text("live") == "Live"
    page.until(lambda: float(page.figure("batched", "mean_batch")) > 1)
    page.until(lambda: page.figure("single", "mean_batch") == "1.0")
    page.until(lambda: page.text("ratio").endswith("times the answers"))
    assert page.complaints() == []


# Has a reader leave; from then on `left` has those whose part of a place ended early, which the
# page shows for a time only.


def readers(page):
    """Who is in each place: the number of a reader, or None."""
    found = [re.match(r"#\d+", name) for name in page.now("#lanes .who", "textContent")]
    return [match and match[0] for match in found]


def test_a_text_of_a_visitor_joins_and_stays_text(opened):
    hostile = "<img src=x onerror=alert(1)>"
    opened.until(lambda: opened.text("live") == "Live")  # a show that has not begun takes no text
    opened.enter("beginning", hostile)

    def join():
        opened.browser.execute_script("arguments[0].requestSubmit()", opened.one("join"))

    def is_written():
        if opened.text("lanes-error"):  # its batch has not begun, or takes no more visitors now
            join()
        # What it wrote stays a while, its name only until the model ends the text, maybe at once.
        return any(hostile in title for title in opened.now("#lanes .part.mine", "title"))

    join()
    opened.until(is_written)
    assert opened.all("main img") == []
    assert opened.complaints() == []


def test_a_killed_worker_comes_back_and_no_call_fails(page):
    page.until(lambda: page.one("kill").is_enabled())
    failed = account(page).get("failed", 0)
    killed = page.text("worker")
    page.one("kill").click()
    # That it is down may be shown for a moment only.
    page.until(lambda: page.text("worker").split(",")[0] not in (killed.split(",")[0], ""))
    page.until(lambda: re.search(r"process \d+, back after", page.text("worker")))
    assert page.one("worker").get_attribute("data-state") == "ready"
    assert page.text("worker").split(",")[0] != killed.split(",")[0]
    answered = account(page)["answered"]
    page.until(lambda: account(page)["answered"] > answered)
    assert account(page)["failed"] == failed


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


def test_a_refusal_is_said_on_the_page(opened):
    opened.enter("prompt", "x" * 3000)
    opened.one("write").click()
    opened.until(lambda: opened.text("text-error"))
    assert opened.one("write").is_enabled()


def test_nothing_sticks_out_at_any_width_and_every_control_has_a_name(opened):
    assert widths_that_overflow(opened.browser) == []
    for control in opened.all("button, input, textarea, [role=img], [role=region]"):
        assert control.accessible_name


def test_the_page_may_load_nothing_from_elsewhere(url):
    with urllib.request.urlopen(url) as answer:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        page = answer.read().decode()
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", page)


def test_the_page_and_the_terminal_lead_to_the_dashboard_and_the_documentation(announced, url):
    named = {name: rest for name, _, rest in (line.partition(":") for line in announced)}
    page = urllib.request.urlopen(url).read().decode()
    for name, path in (("dashboard", "/-/dashboard"), ("endpoints", "/-/docs")):
        printed = named[name].strip()
        assert printed == url.rstrip("/") + path
        assert f'href="{path}"' in page
        assert urllib.request.urlopen(printed).status == 200
    assert Path(named["documentation"].strip()).is_file()


def test_the_commands_that_are_printed_work_from_any_folder(announced, tmp_path):
    def answer_of(line):
        ran = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return ran.stdout

    image, text, chat = (line for line in announced if line.startswith("curl "))
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    assert json.loads(answer_of(image))["digit"] == 0
    assert answer_of(text).endswith("event: end\ndata: {}\n\n")
    assert answer_of(chat).endswith("data: [DONE]\n\n")
    (load,) = (line for line in announced if line.endswith("load.py"))
    assert "--clients" in answer_of(f"{load} --help")
