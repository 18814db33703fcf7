"""The built documentation: its links, and its pages in a real browser."""

import importlib.util
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from browser import NEEDS_CHROMIUM, chromium

DOCS = Path(__file__).parents[1] / "docs"
LIMIT_S = 60
# The build takes a minute of a processor.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_time,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs Sphinx"),
]
SIZES = {"a telephone": 390, "a desk": 1400}
# One of each kind: with tables, code in several languages, pictures, signatures and wide tables.
READ = [
    *("index", "serve", "tutorials/first-steps", "how-to/plan-with-simulations"),
    *("how-to/move-from-other-servers", "how-to/run-in-production", "discussion/layers"),
    *("reference/timeouts", "reference/modules"),
]
SEARCHES = {
    "queue": "how-to/handle-overload",
    "dispatch": "discussion/how-a-batch-is-formed",
    "timeout": "reference/timeouts",
    "GPU": "how-to/serve-a-gpu-model",
    "OpenAI": "how-to/serve-openai-clients",
    "small batch": "how-to/why-are-my-batches-small",
    "503": "how-to/handle-overload",
    "FastAPI": "how-to/batch-inside-fastapi",
}
FIRST = 3
# Keeps one text of each kind as `samples`.
SAMPLE_TEXTS = """
const behind = new Map([[null, ""]]);
const background = (one) => {
  if (!behind.has(one)) {
    const {backgroundColor, backgroundImage, opacity} = getComputedStyle(one);
    const own = [backgroundColor, backgroundImage, opacity].join();
    const isClear = own === "rgba(0, 0, 0, 0),none,1";
    behind.set(one, background(one.parentElement) + (isClear ? "" : own));
  }
  return behind.get(one);
};
const kinds = new Map();
for (const one of document.body.querySelectorAll("*")) {
  const hasText = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (hasText && one.checkVisibility({checkVisibilityCSS: true})) {
    const {color, fontSize, fontWeight} = getComputedStyle(one);
    const kind = [color, fontSize, fontWeight, background(one)].join();
    if (!kinds.has(kind)) kinds.set(kind, one);
  }
}
window.samples = [...kinds.values()];
"""


class Links(HTMLParser):
    """The ids of a page, and what it links to or shows."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        # Empty links are buttons of the theme.
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-n", "-W", "-q", "-b", "html", str(DOCS), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {}
    for path in site.rglob("*.html"):
        if "_static" not in path.parts and "_modules" not in path.parts:
            found[path] = Links()
            found[path].feed(path.read_text(encoding="utf-8"))
    return found


def test_each_link_within_the_site_leads_somewhere(site, pages):
    broken = []
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            is_there = path.is_file() or path.is_dir()
            ids = pages[path].ids if path in pages else None
            if not is_there or (parts.fragment and ids and unquote(parts.fragment) not in ids):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []


def test_each_link_to_elsewhere_is_an_address(pages):
    """There is no network here, so what is at the address is not asked."""
    odd = set()
    for links in pages.values():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme in {"http", "https"} and parts.hostname and "." in parts.hostname:
                continue
            if parts.scheme not in {"", "data", "mailto"}:
                odd.add(target)
    assert odd == set()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        driver.set_script_timeout(LIMIT_S)
        yield driver


def shown(browser, scheme, width):
    """Has pages shown in a colour scheme, in a window of this width."""
    scheme = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@NEEDS_CHROMIUM
@pytest.mark.parametrize("width", SIZES.values(), ids=SIZES)
def test_no_page_sticks_out_of_the_window(browser, site, pages, width):
    shown(browser, "light", width)
    wide = {}
    for page in pages:
        browser.get(f"file://{page}")
        taken = browser.execute_script("return document.documentElement.scrollWidth")
        if taken > width:
            wide[str(page.relative_to(site))] = taken
    assert wide == {}


def problems(browser, context="document", **options):
    """Runs axe in a page, on all of it or on what the expression `context` gives."""
    found = browser.execute_async_script(
        f"const done = arguments[1]; axe.run({context}, arguments[0]).then(done)",
        {"resultTypes": ["violations"], "preload": False, **options},
    )
    return [
        f"{one['id']}: {node['html'][:120]}" for one in found["violations"] for node in one["nodes"]
    ]


def problems_of_contrast(browser):
    """Compares the colours of one text of each kind: all texts of a page would take axe up to 30 s.

    Texts are of one kind if they have the same colour, size and weight, on the same background.
    """
    browser.execute_script(SAMPLE_TEXTS)
    return problems(browser, "{include: samples}", runOnly=["color-contrast"])


def open_page(browser, path):
    axe = pytest.importorskip("axe_core_python.base")
    browser.get(f"file://{path}")
    browser.execute_script(axe.AXE_SCRIPT)


@NEEDS_CHROMIUM
def test_each_page_passes_the_rules_of_axe(browser, site, pages):
    """Only contrasts depend on the colour scheme, so the other rules run once."""
    wrong = {}
    for page in pages:
        shown(browser, "light", 1400)
        open_page(browser, page)
        found = problems(browser, rules={"color-contrast": {"enabled": False}})
        found += problems_of_contrast(browser)
        shown(browser, "dark", 1400)
        found += problems_of_contrast(browser)
        if found:
            wrong[str(page.relative_to(site))] = found
    assert wrong == {}


@NEEDS_CHROMIUM
@pytest.mark.parametrize("name", READ)
def test_a_page_of_each_kind_passes_on_a_telephone(browser, site, name):
    shown(browser, "dark", 390)
    open_page(browser, site / f"{name}.html")
    assert problems(browser) == []


@NEEDS_CHROMIUM
def test_a_text_of_one_kind_shows_its_contrast(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        "<style>@media (prefers-color-scheme: dark) { b { color: #ddd } } </style>"
        "<p>black</p><p>black <b>as light as its background, in the dark</b></p>"
    )
    shown(browser, "light", 1400)
    open_page(browser, page)
    assert problems_of_contrast(browser) == []
    shown(browser, "dark", 1400)
    [problem] = problems_of_contrast(browser)
    assert problem.startswith("color-contrast: <b>")


@NEEDS_CHROMIUM
@pytest.mark.parametrize("words", SEARCHES)
def test_the_search_finds(browser, site, words):
    shown(browser, "light", 1400)
    browser.get(f"file://{site}/search.html?q={words.replace(' ', '+')}")
    WebDriverWait(browser, LIMIT_S).until(
        lambda _: "finished" in browser.find_element(By.ID, "search-results").text
    )
    results = browser.find_elements(By.CSS_SELECTOR, "#search-results li > a")[:FIRST]
    found = [one.get_attribute("href").removeprefix(f"file://{site}/") for one in results]
    assert any(one.startswith(f"{SEARCHES[words]}.html") for one in found), found
