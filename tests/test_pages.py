"""The pages of the documentation: few at the top, none too long, each linked where it helps."""

import os
import re
from pathlib import Path

import pytest

from shoal import errors
from shoal.http.requests.problem import KINDS

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS = ["start", "batch", "serve", "operate", "migrate", "reference/index", "discussion/index"]
# Pages that list others; a link from there alone does not lead a reader on.
LISTS = {"index", *SECTIONS}
MOST_WORDS = 2500
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sources():
    """The text of each page, by its name."""
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


# The page of errors by name has each exception, and each kind of problem


PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors-by-name.md"


@pytest.fixture
def rows():
    """The cells of each row, by the name in its first cell."""
    lines = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
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
