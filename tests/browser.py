"""Chromium, without a window, for tests of pages."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver

CHROMIUM = Path("/usr/bin/chromium")
CHROMEDRIVER = Path("/usr/bin/chromedriver")

NEEDS_CHROMIUM = pytest.mark.skipif(
    not (CHROMIUM.exists() and CHROMEDRIVER.exists()),
    reason=f"needs Chromium and its driver at {CHROMIUM} and {CHROMEDRIVER}",
)


@contextmanager
def chromium(
    profile: Path, height: int = 1000, logs: Sequence[str] = ()
) -> Iterator[webdriver.Chrome]:
    """Runs Chromium.

    Args:
        profile: An empty folder.
        height: The height of its window.
        logs: What is recorded besides what pages write to their consoles.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        # Nothing is drawn 60 times a second: without a graphics card that takes a processor.
        "--force-prefers-reduced-motion",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--window-size=1200,{height}",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", dict.fromkeys(("browser", *logs), "ALL"))
    service = webdriver.ChromeService(str(CHROMEDRIVER))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module", name="browser")
def new_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser for the tests of a file, which records what its pages ask for."""
    profile = tmp_path_factory.mktemp("chromium")
    with chromium(profile, height=1400, logs=["performance"]) as driver:
        driver.get("about:blank")
        yield driver


def widths_that_overflow(driver: webdriver.Chrome) -> list[int]:
    """The widths of a window at which something of the page sticks out."""
    found = []
    for width in (320, 390, 768, 1200):
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        if wide > width:
            found.append(width)
    return found


def addresses_asked(driver: webdriver.Chrome) -> set[str]:
    """The addresses that pages have asked since the performance log was read last."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
