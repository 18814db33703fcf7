"""The report: one file that needs nothing else, with what its cases have found."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from shoal import BatchOptions, DispatchReason
from shoal.core.simulation.results import Linear
from shoal.core.simulation.simulate import simulate
from shoal.planning.figures import Case, rows_of
from shoal.planning.recordings import RecordedBatch, RecordedBatcher, measured_run_times
from shoal.planning.report import Report, report_page, write_report
from shoal.planning.traces import poisson

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert('$1$')</script> & \"x\" \x1b[31m"


def report(name="A", *, run_times=None):
    found = simulate(
        poisson(200, 5, seed=1),
        BatchOptions(max_batch_size=8, max_queued_requests=4),
        Linear(0.02, 0.001),
    )
    batches = [RecordedBatch(0.1 * at, DispatchReason.FULL, 3, 3.0, 0.02) for at in range(20)]
    batcher = RecordedBatcher("b", {"max_concurrent_batches": 1}, batches=batches)
    batcher.latency_s.extend([0.03] * 60)
    batcher.outcomes["finished"] = 60
    cases = [Case.recorded(batcher, "today's"), Case.simulated(name, f"option={name}", found)]
    model = measured_run_times([(one.load, one.run_s) for one in batches])
    facts = [("traffic", name)]
    return Report(name, facts, cases, found.arrived_at, batches, run_times or model, [name])


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.text = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page():
    return report_page(report(HOSTILE))


def test_it_loads_nothing(page):
    tags = Page(page).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "a"}
    assert "default-src 'none'" in page
    for tag, attributes in tags:
        for name, value in attributes.items():
            if name.rpartition(":")[2] in ("href", "src"):
                assert value.startswith("#"), (tag, name, value)
    assert {*re.findall(r"url\((.)", page)} <= {"#"}
    addresses = {*re.findall(r"https?://[^\"'\s<]*", page)}
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_names_are_text(page):
    text = "".join(Page(page).text)
    assert text.count("<script>alert('$1$')</script>") >= 6
    assert "<script" not in page
    plots = [ET.fromstring(plot) for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    texts = [one.text or "" for plot in plots for one in plot.iter() if one.tag.endswith("}text")]
    assert sum("('$1$')" in text for text in texts) >= 4  # nor is it mathematics
    assert "\x1b" not in page


def test_each_plot_is_svg_with_ids_of_its_own(page):
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 7
    ids = []
    for plot in plots:
        root = ET.fromstring(plot)
        ids += [one.get("id") for one in root.iter() if one.get("id")]
        for name in re.findall(r"url\(#([^)]*)\)", plot):
            assert f'id="{name}"' in plot
    assert len(ids) == len({*ids})


def test_it_is_dark_and_light(page):
    assert "prefers-color-scheme: dark" in page
    assert "color-scheme: light dark" in page
    plots = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert plots.count("var(--ink)") > 50
    # Nothing is black or white, whatever the page is.
    assert not re.findall(r"(?:fill|stroke): #(?:000000|ffffff)\b", plots)


def test_it_has_the_figures_of_each_case(page):
    text = "".join(Page(page).text)
    for name, texts in rows_of(report(HOSTILE).cases):
        assert name in text
        for one in texts:
            assert one in text


def test_the_same_report_is_the_same_page(page):
    assert report_page(report(HOSTILE)) == page


def test_it_may_have_no_measured_batch_and_no_answer(tmp_path):
    given = report(run_times=Linear(0.01, 0.001))
    nothing = replace(given.cases[1], latency_s=[], waits_s=[], sizes=[], reasons={}, outcomes={})
    write_report(replace(given, batches=[], cases=[nothing]), tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_rows_of_a_table_are_those_that_say_something():
    recorded, simulated = report().cases
    rows = dict(rows_of([recorded, simulated]))
    assert rows["answered"][0] == "60"
    assert rows["latency p99"][0] == "30 ms"
    assert rows["mean batch"][0] == "3"
    assert rows["handler busy"][0] == "21%"
    assert rows["because full"][0] == "100%"
    assert rows["because timer"][0] == "0%"
    assert rows["wait p50"][0] == "-"
    refused = simulated.count("rejected")
    assert refused > 0
    assert rows["refused or shed"] == ["0", f"{refused:,}"]
    assert "failed or cancelled" not in rows
    assert "because drain" not in rows
