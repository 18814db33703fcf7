"""The pages of the documentation: few at the top, none too long, each linked where it helps.

Their tables have each error, each time-out and what was measured. Pages to migrate have a section
for each peer, with its code before and after.
"""

import importlib.util
import json
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from shoal import BackendConfig, BatchOptions, errors
from shoal.asgi.http_options import HttpOptions
from shoal.core.options.records import Models, QueuePolicy
from shoal.http.requests.problem import KINDS
from shoal.replicas.contract import ReplicaOptions
from shoal.replicas.placements import RayOptions

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS = ["start", "batch", "serve", "operate", "migrate", "reference/index", "discussion/index"]
# Pages that list others; a link from there alone does not lead a reader on.
LISTS = {"index", *SECTIONS}
MOST_WORDS = 2500
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RESULTS = json.loads((DOCS / "pictures" / "models" / "results.json").read_text(encoding="utf-8"))


def sources():
    return {
        path.relative_to(DOCS).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for kind in ("md", "rst")
        for path in DOCS.rglob(f"*.{kind}")
        if "_build" not in path.parts
    }


PAGES = sources()


def entries(name):
    """The pages in the table of contents of a page."""
    lines = [line for tree in TREE.findall(PAGES[name]) for line in tree.splitlines()]
    return [
        os.path.normpath(Path(name).parent / line)
        for line in lines
        if line and not line.startswith(":")
    ]


def links(name):
    """The pages that the text of a page leads to."""
    text = FENCE.sub("", PAGES[name])
    named = re.findall(r"\]\(([^)#\s:]+)\.(?:md|rst)(?:#[^)]*)?\)", text)
    found = {os.path.normpath(Path(name).parent / one) for one in named}
    return found | {one.lstrip("/") for one in re.findall(r":doc:`(?:[^<`]*<)?([^>`]+)>?`", text)}


def prose(text):
    """What is read from the first word to the last: neither tables nor code."""
    return "\n".join(line for line in FENCE.sub("", text).splitlines() if line[:1] != "|")


def test_there_are_seven_entries_at_the_top():
    assert entries("index") == SECTIONS


def test_each_page_has_one_place_in_the_table_of_contents():
    placed = [entry for name in PAGES for entry in entries(name)]
    assert sorted(placed) == sorted(set(PAGES) - {"index"})


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_not_too_long(name):
    assert len(prose(PAGES[name]).split()) <= MOST_WORDS


@pytest.mark.parametrize("name", sorted(set(PAGES) - LISTS))
def test_a_page_is_linked_from_its_section(name):
    """The lists say for what one would want it, so the table of contents alone is not enough."""
    assert any(name in links(one) for one in SECTIONS)


@pytest.mark.parametrize("name", sorted(set(PAGES) - LISTS))
def test_a_page_is_linked_from_a_page_that_its_reader_is_on(name):
    assert any(name in links(one) for one in PAGES if one not in LISTS | {name})


def anchors_on_github(name):
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", PAGES[name]), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_an_anchor_leads_somewhere_on_github_as_well(name):
    """Sphinx makes anchors of its own, which differ where a heading has a dot."""
    lost = []
    for page, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", FENCE.sub("", PAGES[name])):
        target = os.path.normpath(Path(name).parent / page).removesuffix(".md") if page else name
        if target in PAGES and anchor not in anchors_on_github(target):
            lost.append(f"{page}#{anchor}")
    assert lost == []


HOW_TOS = sorted(name for name in set(PAGES) - LISTS if name.startswith("how-to/"))


@pytest.mark.parametrize("name", HOW_TOS)
def test_a_guide_opens_with_its_code(name):
    """A table that answers the question may come first as well."""
    page = PAGES[name][PAGES[name].index("# ") :]  # after its words for the search
    opening = re.split(r"^(?:```|\| )", page, maxsplit=1, flags=re.MULTILINE)[0]
    assert len(opening.split()) <= 120


@pytest.fixture
def rows():
    """The cells of each row of the page of errors, by the name in its first cell."""
    page = PAGES["reference/errors-by-name"]
    lines = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", page, re.MULTILINE)
    found = {name: cells.split(" | ") for name, cells in lines}
    assert len(found) == len(lines)
    return found


def test_each_exception_has_its_cause_and_cure(rows):
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ShoalError)
    }
    named = {name: cells for name, cells in rows.items() if name not in KINDS}
    assert set(named) == classes - {"ShoalError"}
    assert {len(cells) for cells in named.values()} == {2}


def test_each_kind_of_problem_has_its_status_cause_and_cure(rows):
    for kind, (status, _) in KINDS.items():
        found, cause, cure = rows[kind]
        assert found == str(status)
        assert cause
        assert cure


OWNERS = (BatchOptions, BackendConfig, ReplicaOptions, RayOptions, HttpOptions)
# The order of the queue, the pause between two checks, and what a client is told.
NO_LIMITS = {"priority_aging_s", "health_check_period_s", "retry_after_s"}
LIMITS = {
    **{one.name: one.default for owner in OWNERS for one in fields(owner)},
    **{f"Models.{one.name}": one.default for one in fields(Models)},
    **{f"QueuePolicy.{one.name}": one.default for one in fields(QueuePolicy)},
}
LIMITS = {
    name: default
    for name, default in LIMITS.items()
    if name.endswith("_s") and name not in NO_LIMITS
}
# The name of each option in the first column, with the default beside it.
ROWS = [
    (re.findall(r"`([\w.]+)`", names), default)
    for names, default in re.findall(
        r"^\| (.*?) \| (.*?) \|", PAGES["reference/timeouts"], re.MULTILINE
    )
]


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_has_its_row_with_its_default(name):
    [shown] = [default for names, default in ROWS if name in names]
    if name == "QueuePolicy.batch_wait_timeout_s":  # the batcher's
        return
    number = LIMITS[name]
    assert shown.removesuffix(" s") == ("none" if number is None else f"{number:g}")


@pytest.mark.parametrize("name", RESULTS)
def test_the_table_has_the_measured_rates(name):
    result, page = RESULTS[name], PAGES["how-to/serve-real-models"]
    (row,) = (line for line in page.splitlines() if f"(`{name}`)" in line)
    one, (size, most) = result["rates"]["1"], list(result["rates"].items())[-1]
    assert f"| {one:,g} {result['unit']}/s | {most:,g} {result['unit']}/s, {size} |" in row
    assert f"| {most / one:.1f} |" in row
    advice = result["tune"]["max_batch_size"] if result["tune"] else "none"
    assert f"| {advice} |" in row
    assert f"../pictures/models/{name}.svg" in page


CODE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^#{1,2} (.*)$", re.MULTILINE)
# The heading of each peer's section, and the page with it.
PEERS = {
    "LitServe": "move-from-other-servers",
    "mosec": "move-from-other-servers",
    "BentoML": "move-from-other-servers",
    "Triton's Python backend": "move-from-other-servers",
    "TorchServe": "move-from-other-servers",
    "TensorFlow Serving's batching": "move-from-other-servers",
    "caikit's Batcher": "move-from-other-servers",
    "Migrate from aiodataloader": "share-equal-calls",
    "Migrate from Ray Serve": "move-from-ray-serve",
}


def section_of(peer):
    """The text below a heading, up to the next peer's."""
    text = PAGES[f"how-to/{PEERS[peer]}"]
    start = text.index(f"# {peer}\n")
    ends = [heading.start() for heading in SECTION.finditer(text, start + 1) if heading[1] in PEERS]
    return text[start : min(ends, default=len(text))]


WITH_BEFORE = [peer for peer in PEERS if CODE.findall(section_of(peer))[0][0] == "py"]


def test_most_peers_have_their_code_before():
    assert set(PEERS) - set(WITH_BEFORE) == {
        "TensorFlow Serving's batching",  # which is in C++
    }


@pytest.mark.parametrize("peer", PEERS)
def test_a_section_opens_with_code_and_says_what_its_peer_has(peer):
    text = section_of(peer)
    assert len(text[: text.index("```")].split()) <= 50
    assert re.search(r"^\| .* \| Shoal \|$", text, re.MULTILINE)
    assert re.search(r"Shoal\s+lacks|What Ray Serve lacks|differences.md#tensorflow", text)


@pytest.mark.parametrize("peer", WITH_BEFORE)
def test_the_code_before_is_code_of_the_peer(peer):
    """It is run where the peer is installed; the other peers need a GPU's image, Java or Rust."""
    before = CODE.findall(section_of(peer))[0][1]
    code = compile(before, peer, "exec")
    named = re.search(r"^(?:import|from) (litserve|mosec|aiodataloader)\b", before, re.MULTILINE)
    if named is not None and importlib.util.find_spec(named[1]) is not None:
        exec(code, {"__name__": "before"})
