"""The dashboard in a real browser, while a server works, ends and comes back."""

import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from dashboard_app import HOSTILE
from dashboard_reader import (
    LIMIT_S,
    Page,
    Server,
    canvas_of,
    lane_of,
    number_of,
    replicas_of,
    row_of,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from browser import NEEDS_CHROMIUM, addresses_asked, new_browser, widths_that_overflow  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.real_time, NEEDS_CHROMIUM]


EARLY_S = 0.001  # A timer of an event loop may be so early.


@pytest.fixture(scope="module")
def server():
    server = Server()
    server.start()
    yield server
    server.end()


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
    asked = addresses_asked(opened.browser)
    assert {one for one in asked if not one.startswith((f"{server.url}/-/dashboard", "data:"))} == (
        set()
    )


def test_the_numbers_are_right_while_requests_run(page, server):
    before = int(re.search(r"Requests\n(\d+)", row_of(page, "backends", "fours"))[1])
    server.post_all("/fours", 80)
    page.until(lambda: f"Requests\n{before + 80}" in row_of(page, "backends", "fours"))
    page.until(lambda: "4.0 of 4 requests" in lane_of(page, "fours"))
    assert "100 %: it was full" in lane_of(page, "fours")
    label = page.until(lambda: canvas_of(page, "fours").accessible_name)
    assert label.startswith("fours: 4.0 of 4 requests; ran ")
    page.until(lambda: page.spans(canvas_of(page, "fours"), "full"))
    endpoint = row_of(page, "endpoints", "fours")
    assert f"Requests\n{before + 80}" in endpoint
    assert "fours 100 %" in endpoint
    page.until(lambda: f"next: 100 % agree of {before + 80}" in row_of(page, "endpoints", "fours"))
    assert page.browser.find_elements(By.CSS_SELECTOR, ".chart canvas")


def test_the_timeline_shows_what_each_batch_waited_and_ran_and_how_full_it_was(page, server):
    page.press("10 s")
    took = server.post("/stage", "play")
    page.until(lambda: page.spans(canvas_of(page, "bars"), "failed"))
    width = canvas_of(page, "bars").rect["width"]
    # The failed batch is the last one.
    page.until(lambda: page.spans(canvas_of(page, "bars"), "failed")[-1].right < width - 5)
    page.press("Pause")
    assert page.browser.find_element(By.ID, "pause").get_attribute("aria-pressed") == "true"
    try:
        page.until_drawn_anew()
        assert lane_of(page, "bars").startswith("bars\n2.3 of 4 requests\nran ")
        assert "67 %: its oldest request had waited long enough" in lane_of(page, "bars")
        bars_are_right(page, canvas_of(page, "bars"), width / 10, took["bars"])
        places_are_right(page, canvas_of(page, "paced"), width / 10, took["paced"])
    finally:
        page.press("Go on")
        page.point_away()


def bars_are_right(page, lane, a_second, took):
    """Looks at the bars of batches of four, two and one, the lines below them, and their tips."""
    full = page.spans(lane, "full")[-1]
    half, low = page.spans(lane, "timer")[-2:]
    tips = []
    played = [(full, 4, 0.4, took[:4]), (half, 2, 0.6, took[4:6]), (low, 1, 0.4, took[6:])]
    for bar, size, least, callers in played:
        name, filled, times, *why = page.tip_at(lane, bar.centre)
        waited, ran = map(number_of, re.fullmatch(r"waited (.+), ran (.+)", times).groups())
        assert filled == f"{size} of 4 requests"
        assert is_between(least, waited, ran, max(callers))
        assert is_as_wide(bar.width, ran, a_second)
        assert bar.height == pytest.approx(full.height * size / 4, abs=1)
        assert bar.bottom == full.bottom
        tips.append((name, waited, why))
    first = int(tips[0][0].removeprefix("bars, batch "))
    assert [name for name, *_ in tips] == [f"bars, batch {first + more}" for more in range(3)]
    by_time = "dispatched because its oldest request had waited long enough"
    assert [why for *_, why in tips] == [
        ["dispatched because it was full"],
        [by_time],
        [by_time, "1 failed: LookupError"],
    ]

    # The line below is until the batch began.
    lines = page.spans(lane, "timer", alpha=0.8)[-2:]
    for bar, line, (name, waited, _) in zip([half, low], lines, tips[1:], strict=True):
        assert waited >= 0.3 - EARLY_S
        assert is_as_wide(line.width, waited, a_second)
        assert line.right == pytest.approx(bar.left, abs=2)
        assert line.top > bar.bottom
        assert page.tip_at(lane, line.centre)[0] == name
    assert page.tip_at(lane, ((half.right + low.left) / 2, full.top)) == []

    room = page.spans(lane, "empty")[-2]  # that the batch of two left
    assert (room.left, room.right, room.top) == (half.left, half.right, full.top)
    edge = page.spans(lane, "failed")
    assert [(one.left, one.right) for one in edge] == [(low.left, low.right)]
    assert edge[0].bottom == pytest.approx(full.top, abs=1)


def places_are_right(page, lane, a_second, took):
    """Looks at the bars of two requests in a continuous batch, and their tips."""
    ends = [(0.4, "finished"), (0.6, "failed")]
    for place, ((least, end), caller) in enumerate(zip(ends, took, strict=True)):
        middle = (place + 0.5) / 10
        within = middle - 0.01, middle + 0.01
        bar = page.spans(lane, "open", alpha=0.9, ground="empty", within=within)[-1]
        name, request, times = page.tip_at(lane, bar.centre)
        assert name == f"paced, place {place + 1}"
        assert request.startswith("request ")
        *spent, said = re.fullmatch(r"waited (.+), stayed (.+), (\w+)", times).groups()
        waited, stayed = map(number_of, spent)
        assert said == end
        assert is_between(least, waited, stayed, caller)
        edges = page.spans(lane, "failed", within=within)
        assert len(edges) == (end == "failed")
        right = max(one.right for one in [bar, *edges])
        assert is_as_wide(right - bar.left, stayed, a_second, 5)


def is_between(least, waited, ran, caller):
    """Whether it ran as long as its handler does, and no longer than its caller waited."""
    return least - EARLY_S <= ran <= caller - waited + rounding_of(waited) + rounding_of(ran)


def is_as_wide(width, time, a_second, edges=3):
    """Whether so many pixels are a time, but for edges in other colours and a gap."""
    off = rounding_of(time) * a_second
    return time * a_second - edges - off <= width <= time * a_second + 1 + off


def rounding_of(time):
    return 0.0006 if time < 1 else 0.06


@contextmanager
def traffic(server):
    """Requests that are made while this is open, each when the last one of its client is answered.

    At most 24 + 6 + 1 are answered a second in `paced`, and four batches of 4 in `bars`.
    """
    counts = {"began": 0, "answered": 0}
    lock = threading.Lock()
    is_over = threading.Event()

    def ask(path, item):
        while not is_over.is_set():
            with lock:
                counts["began"] += path == "/paced"
            server.post(path, item)
            with lock:
                counts["answered"] += path == "/paced"

    clients = (
        [("/paced", 0.25)] * 6 + [("/paced", 0.5)] * 3 + [("/paced", 1)] + [("/bars", 0.25)] * 4
    )
    with ThreadPoolExecutor(len(clients)) as threads:
        asked = [threads.submit(ask, *client) for client in clients]
        try:
            yield counts
        finally:
            is_over.set()
    for each in asked:
        each.result()


FIGURES = (
    r"Requests / s\n(?P<finished>.+)\nfinished\nLatency\n(?P<median>.+)\np99 (?P<p99>.+)\n"
    r"Mean batch\n(?P<size>.+)\nof (?P<most>.+) · (?P<batches>.+) batches / s\n"
)


def are_about(texts, *wanted):
    """Whether figures are what they would be if nothing but the handlers took time, or nearly so.

    On a busy machine a request takes longer, and fewer end in a second; in some one batch more.
    """
    return all(is_about(*each) for each in zip(texts, wanted, strict=True))


def is_about(text, wanted):
    low, high = (0.99, 1.5) if text.endswith("s") else (0.65, 1.3)
    value = number_of(text)
    return value is not None and low * wanted <= value < high * wanted


def test_rates_and_latencies_are_right_while_requests_run(page, server):
    def requests():
        return int(re.search(r"Requests\n([\d,]+)", row_of(page, "endpoints", "paced"))[1])

    def figures_are_right():
        if not (found := re.match(FIGURES, page.text("#figures"))):
            return False
        *rates, size, most = found.group("finished", "median", "p99", "batches", "size", "most")
        return (size, most) == ("4.0", "4") and are_about(rates, 47, 0.25, 1, 4)

    def chart_has(title, **wanted):
        found = page.latest_in_chart(title)
        assert [*found] == [*wanted]
        return are_about(found.values(), *wanted.values())

    latency = "Latency, from arrival to result"
    chosen = Select(page.browser.find_element(By.ID, "chosen"))
    before = requests()
    with traffic(server) as counts:
        page.until(figures_are_right)
        answered = counts["answered"]
        page.until(lambda: requests() - before >= answered)
        assert requests() - before <= counts["began"]

        chosen.select_by_value("paced")
        page.until(lambda: chart_has("Requests finished a second", paced=31))
        page.until(lambda: chart_has(latency, p50=0.25, p95=0.5, p99=1))
        chosen.select_by_value("bars")
        page.until(lambda: chart_has("Requests finished a second", bars=16))
        page.until(lambda: chart_has(latency, p50=0.25, p95=0.25, p99=0.25))
        sizes = {"mean": "4", "at most": "4"}
        page.until(lambda: page.latest_in_chart("Requests in a batch, mean") == sizes)
        losses = {"failed": "0", "refused": "0", "left or late": "0"}
        page.until(lambda: page.latest_in_chart("Requests without a result, a second") == losses)
        reasons = "Batches a second, by dispatch reason"
        page.until(lambda: are_about([page.latest_in_chart(reasons)["full"]], 4))
    chosen.select_by_value("")
    page.point_away()


def test_what_waits_is_shown_by_its_level(page, server):
    def waits(text):
        return f"Waiting\n{text}\nRunning\n1" in row_of(page, "backends", "levels")

    chosen = Select(page.browser.find_element(By.ID, "chosen"))
    with ThreadPoolExecutor(6) as threads:

        def ask(level):
            return threads.submit(server.post, "/levels", level, **{"x-priority": str(level)})

        asked = [ask(2)]
        page.until(lambda: "Running\n1" in row_of(page, "backends", "levels"))
        asked += [ask(level) for level in (1, 2, 2, 1, 2)]
        try:
            page.until(lambda: waits("5\n2 at level 1, 3 at level 2"))
            page.until(lambda: "Waiting\n5\n1 running" in page.text("#figures"))
            page.until(lambda: "up to 1 requests · 5 waiting" in lane_of(page, "levels"))
            # They are in the chart of all, though other batchers finish more.
            by_level = {"levels, level 1": "2", "levels, level 2": "3"}
            page.until(
                lambda: by_level.items() <= page.latest_in_chart("Requests that wait").items()
            )
            chosen.select_by_value("levels")
            page.until(lambda: page.latest_in_chart("Requests that wait") == by_level)
            # What runs has no end yet.
            lane = canvas_of(page, "levels")
            tip = page.until(lambda: page.tip_at(lane, (lane.rect["width"] - 2, 20)))
            assert re.fullmatch(r"levels, batch \d+", tip[0])
            assert tip[1] == "1 of 1 requests"
            assert re.fullmatch("waited .+, still running", tip[2])
            for left in ["4\n1 at level 1, 3 at level 2", "3\n3 at level 2"]:
                server.post("/stage", "pass")
                page.until(lambda left=left: waits(left))
        finally:
            for _ in asked:
                server.post("/stage", "pass")
        assert [one.result() for one in asked] == [2, 1, 2, 2, 1, 2]
    page.until(lambda: "Waiting\n0\n" in row_of(page, "backends", "levels"))
    chosen.select_by_value("")
    page.point_away()


def test_replicas_that_fall_ill_are_shown_until_others_are_well(page, server):
    def shows(state, ready, deaths):
        facts = f"Replicas\n{ready} of 2\n", f"Deaths\n{deaths}\n{deaths} restarted"
        row = row_of(page, "backends", "ailing")
        return row.startswith(f"ailing\n{state}\n") and all(fact in f"{row}\n" for fact in facts)

    def states():
        return sorted(state for state, _ in replicas_of(page, "ailing"))

    def sayings():
        return [said for _, said in replicas_of(page, "ailing")]

    assert states() == ["ready", "ready"]
    server.post("/stage", "stop starts")
    try:
        server.post("/ailing", False)
        page.until(lambda: shows("degraded", 1, 1))
        page.until(lambda: states() == ["ready", "starting"])
        assert "ReplicaDied" in row_of(page, "backends", "ailing")
        assert server.post("/ailing", False) is False  # the other one
        page.until(lambda: shows("unavailable", 0, 2))
        page.until(lambda: states() == ["starting", "starting"])
    finally:
        server.post("/stage", "start")
    page.until(lambda: shows("ready", 2, 2))
    assert states() == ["ready", "ready"]
    assert server.post("/ailing", True) is True
    new = [r"ailing#\d+: ready, 0 running, 0 batches", r"ailing#\d+: ready, 0 running, 1 batch"]
    page.until(lambda: all(any(re.fullmatch(one, said) for said in sayings()) for one in new))


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


def test_the_charts_show_the_busiest_batchers_and_say_so(page, server):
    server.post_all("/last", 20)
    page.until(lambda: "last" in page.text(".chart .legend").split())
    assert "idle" not in page.text(".chart .legend").split()
    assert page.text("#chosen option") == "all batchers (lines: the 7 busiest)"


def test_it_is_dark_where_the_reader_wants_that(page):
    def ground(scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        return page.run("return getComputedStyle(document.body).backgroundColor")

    assert ground("dark") != ground("light")


def test_nothing_sticks_out_at_any_width(page):
    assert widths_that_overflow(page.browser) == []


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
