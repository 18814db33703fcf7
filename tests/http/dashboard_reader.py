"""What reads the dashboard's page as a person does, and the server whose page it is."""

import json
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from described_server import described_server
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import staleness_of
from selenium.webdriver.support.wait import WebDriverWait

LIMIT_S = 60
HANG_S = 2 * LIMIT_S  # What a test holds does not end before the test is told why it waits.


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

    def post(self, path, item, request_id="a", **headers):
        headers |= {"content-type": "application/json", "x-request-id": request_id}
        request = urllib.request.Request(self.url + path, json.dumps(item).encode(), headers)
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return json.load(answer)

    def post_all(self, path, count):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: self.post(path, number), range(count)))


class Span(NamedTuple):
    """Where a colour is in a picture, in pixels of the page."""

    left: float
    right: float
    top: float
    bottom: float

    @property
    def width(self):
        return self.right - self.left

    @property
    def height(self):
        return self.bottom - self.top

    @property
    def centre(self):
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


# The spans of columns of a canvas that have pixels of a colour, which a custom property of the page
# names, drawn with an opacity on another colour or on nothing; between two heights of the canvas.
SPANS = """
const [canvas, name, alpha, ground, from, to] = arguments;
const style = getComputedStyle(document.documentElement);
const read = (width, height) => (
  new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })
);
const probe = read(1, 1);
for (const [each, opacity] of [[ground, 1], [name, alpha]]) {
  if (each) {
    probe.fillStyle = style.getPropertyValue(`--${each}`).trim();
    probe.globalAlpha = opacity;
    probe.fillRect(0, 0, 1, 1);
  }
}
const wanted = probe.getImageData(0, 0, 1, 1).data;
const { width, height } = canvas;
const copy = read(width, height);
copy.drawImage(canvas, 0, 0);
const { data } = copy.getImageData(0, 0, width, height);
const spans = [];
for (let x = 0; x < width; x += 1) {
  for (let y = Math.floor(from * height); y < to * height; y += 1) {
    const at = 4 * (y * width + x);
    if (wanted.every((value, index) => Math.abs(value - data[at + index]) <= 2)) {
      const last = spans.at(-1);
      if (last && x - last[1] <= 2) {
        last[1] = x + 1;
        last[2] = Math.min(last[2], y);
        last[3] = Math.max(last[3], y + 1);
      } else {
        spans.push([x, x + 1, y, y + 1]);
      }
    }
  }
}
const scale = canvas.clientWidth / width;
return spans.map((span) => span.map((value) => value * scale));
"""

# Rows are replaced each second, which leaves no time to ask for the name of each.
NAMED = """
const [selector, name] = arguments;
return [...document.querySelectorAll(selector)].find(
  (each) => each.querySelector("b, figcaption")?.textContent === name
);
"""

DOTS = """
return [...arguments[0].querySelectorAll(".dot")].map((dot) => [dot.dataset.state, dot.title]);
"""

# What the legend of a chart says of the moment at the pointer.
LEGEND = """
const items = [...arguments[0].querySelectorAll(".legend li")];
return items.map((item) => [...item.querySelectorAll("span, b")].map((one) => one.textContent));
"""


class Page:
    """The page; `text` and `until` look at it as a reader does."""

    def __init__(self, browser):
        self.browser = browser

    def text(self, selector):
        def look():
            found = self.browser.find_elements(By.CSS_SELECTOR, selector)
            return found[0].text if found else ""

        return self.now(look)

    def named(self, selector, name):
        """The row, the lane or the chart with a name; None if there is none."""
        return self.run(NAMED, selector, name)

    def text_named(self, selector, name):
        found = self.named(selector, name)
        return found.text if found else ""

    def until(self, condition):
        return self._waiting().until(lambda _: condition())

    def now(self, look):
        """What a function sees; it looks again if what it looks at is replaced meanwhile."""
        return self.until(lambda: [look()])[0]

    def _waiting(self):
        return WebDriverWait(
            self.browser, LIMIT_S, 0.1, ignored_exceptions=[StaleElementReferenceException]
        )

    def until_drawn_anew(self):
        """Waits for a further message: it replaces these rows, and all is drawn after it."""
        self._waiting().until(staleness_of(self._find("#backends .row")))

    def run(self, script, *given):
        return self.browser.execute_script(script, *given)

    def complaints(self):
        return self.browser.get_log("browser")

    def press(self, name):
        buttons = self.browser.find_elements(By.TAG_NAME, "button")
        next(one for one in buttons if one.text == name).click()

    def point(self, element, left, top):
        self.run("arguments[0].scrollIntoView({ block: 'center' })", element)
        across, down = left - element.rect["width"] / 2, top - element.rect["height"] / 2
        actions = ActionChains(self.browser, duration=0)
        actions.move_to_element_with_offset(element, round(across), round(down)).perform()

    def point_away(self):
        self.point(self._find("h1"), 1, 1)

    def tip_at(self, canvas, place):
        """The lines of the tip at a place in a picture; nothing if there is none."""
        self.point(canvas, *place)
        return self.text("#tip").splitlines()

    def spans(self, canvas, color, alpha=1, ground=None, within=(0, 1)):
        found = self.run(SPANS, canvas, color, alpha, ground, *within)
        return [Span(*each) for each in found]

    def latest_in_chart(self, title):
        """What the chart with a title says at its right edge, by the names of its lines."""

        def look():
            chart = self.named(".chart", title)
            plot = chart.find_element(By.CSS_SELECTOR, ".u-over")
            self.point(plot, plot.rect["width"] - 1, plot.rect["height"] / 2)
            return dict(self.run(LEGEND, chart))

        return self.now(look)

    def _find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)


def row_of(page, kind, name):
    """The texts of the row of a backend or an endpoint; nothing if there is no such row."""
    return page.now(lambda: page.text_named(f"#{kind} .row", name))


def lane_of(page, name):
    return page.until(lambda: page.text_named("#lanes .lane", name))


def canvas_of(page, name):
    return page.named("#lanes .lane", name).find_element(By.TAG_NAME, "canvas")


def replicas_of(page, name):
    """The state of each replica of a backend, and what its dot says to the pointer."""

    row = page.now(lambda: page.run(DOTS, page.named("#backends .row", name)))
    return [tuple(each) for each in row]


def number_of(text):
    """A number as the page writes it, of seconds if it is a time; None for none."""
    number, _, unit = text.partition(" ")
    return float(number) / {"ms": 1000, "s": 1, "": 1}[unit] if number[:1].isdigit() else None
