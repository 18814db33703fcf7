"""The pages for callers in a real browser: they work, and load nothing from elsewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

HERE = Path(__file__).parent
CHROMIUM = Path("/usr/bin/chromium")
CHROMEDRIVER = Path("/usr/bin/chromedriver")
LIMIT_S = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not (CHROMIUM.exists() and CHROMEDRIVER.exists()),
        reason=f"needs Chromium and its driver at {CHROMIUM} and {CHROMEDRIVER}",
    ),
]


@pytest.fixture(scope="module", params=["app", "site"], ids=["at the root", "below a prefix"])
def url(request):
    """The address of the application."""
    command = [sys.executable, "-m", "shoal", "serve", f"described_app:{request.param}"]
    with subprocess.Popen(
        [*command, "--port", "0"],
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            for line in server.stdout:
                if found := re.search(r"http://\S+", line):
                    yield found[0] + ("/ml" if request.param == "site" else "")
                    break
        finally:
            server.terminate()
            server.stdout.read()


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
        "--window-size=1200,1400",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(CHROMEDRIVER)))
    driver.get("about:blank")
    yield driver
    driver.quit()


@pytest.fixture(autouse=True)
def nothing_is_wrong(browser, url):
    """The browser had nothing to complain of, and asked no other host."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what was before
    yield
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
    origin = re.match(r"http://[^/]+", url)[0] + "/"
    assert any(one.startswith(origin) for one in asked)
    assert {one[:80] for one in asked if not one.startswith((origin, "data:"))} == set()


def find(browser, selector):
    return WebDriverWait(browser, LIMIT_S).until(
        lambda _: browser.find_elements(By.CSS_SELECTOR, selector)
    )[0]


def test_the_document_is_shown_and_a_call_is_made(browser, url):
    browser.get(f"{url}/-/docs")
    assert browser.title == "Shapes"
    find(browser, "#operations-default-post_judge .opblock-summary-control").click()
    assert "Judges comments." in find(browser, "#operations-default-post_judge").text
    find(browser, "#operations-default-post_judge .execute").click()
    answer = find(browser, "#operations-default-post_judge .live-responses-table .response")
    WebDriverWait(browser, LIMIT_S).until(lambda _: "200" in answer.text)
    assert '"author": "cod"' in answer.text


def test_the_page_at_the_root_leads_to_the_document(browser, url):
    browser.get(f"{url}/")
    assert "curl" in find(browser, "pre").text
    find(browser, "nav a").click()
    find(browser, ".opblock")
    assert browser.current_url == f"{url}/-/docs"


def test_both_pages_are_dark_where_the_reader_wants_that(browser, url):
    def background(page, scheme, selector):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        browser.get(url + page)
        find(browser, selector)
        return find(browser, selector).value_of_css_property("background-color")

    for page, selector in (("/", "pre"), ("/-/docs", ".opblock")):
        assert background(page, "dark", selector) != background(page, "light", selector)
