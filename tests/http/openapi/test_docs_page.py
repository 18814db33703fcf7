"""The pages for callers in a real browser: they work, and load nothing from elsewhere."""

import re

import pytest
from described_server import described_server
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from browser import NEEDS_CHROMIUM, addresses_asked, new_browser  # noqa: F401

LIMIT_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.real_time, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def url():
    with described_server("site") as address:
        yield f"{address}/ml"


@pytest.fixture(autouse=True)
def nothing_is_wrong(browser, url):
    """The browser had nothing to complain of, and asked no other host."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what was before
    yield
    assert browser.get_log("browser") == []
    asked = addresses_asked(browser)
    origin = re.match(r"http://[^/]+", url)[0] + "/"
    assert any(one.startswith(origin) for one in asked)
    assert {one[:80] for one in asked if not one.startswith((origin, "data:"))} == set()


def find(browser, selector):
    return WebDriverWait(browser, LIMIT_S).until(
        lambda _: browser.find_elements(By.CSS_SELECTOR, selector)
    )[0]


def wait_for(browser, selector, *texts):
    """Waits until an element has these texts; a page of scripts makes its elements anew."""

    def has_them(_):
        found = browser.find_elements(By.CSS_SELECTOR, selector)
        return found and all(text in found[0].text for text in texts)

    WebDriverWait(browser, LIMIT_S, ignored_exceptions=[StaleElementReferenceException]).until(
        has_them
    )


def prefer(browser, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def changes_with_the_scheme(browser, selector, name):
    """Whether a colour is another one where the reader wants a light page; it is dark before."""
    dark = find(browser, selector).value_of_css_property(name)
    prefer(browser, "light")
    return WebDriverWait(browser, LIMIT_S).until(
        lambda _: find(browser, selector).value_of_css_property(name) != dark
    )


def test_the_page_at_the_root_leads_to_the_document_where_a_call_is_made(browser, url):
    prefer(browser, "dark")
    browser.get(f"{url}/")
    assert "curl" in find(browser, "pre").text
    assert changes_with_the_scheme(browser, "pre", "color")
    prefer(browser, "dark")
    find(browser, "nav a").click()
    find(browser, ".opblock")
    assert browser.current_url == f"{url}/-/docs"
    assert browser.title == "Shapes"
    assert changes_with_the_scheme(browser, ".opblock", "background-color")
    find(browser, "#operations-default-post_judge .opblock-summary-control").click()
    wait_for(browser, "#operations-default-post_judge", "Judges comments.")
    find(browser, "#operations-default-post_judge .execute").click()
    answer = "#operations-default-post_judge .live-responses-table .response"
    wait_for(browser, answer, "200", '"author": "cod"')
