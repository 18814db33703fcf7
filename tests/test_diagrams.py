"""The pictures of the pages: what their scripts draw, legible on a telephone, each on a page."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.diagrams.draw import HERE, PICTURES

DOCS = HERE.parent
SVG = "{http://www.w3.org/2000/svg}"
TELEPHONE = 390 - 2 * 16  # the window, without the margins of a page
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
SHOWN = {
    (path.parent / target).resolve(): alt
    for path in DOCS.rglob("*.md")
    for alt, target in IMAGE.findall(path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_script_draws(name):
    assert (HERE / name).read_text(encoding="utf-8") == PICTURES[name](), (
        "a picture has changed; run: python -m docs.diagrams.draw"
    )


def test_each_picture_has_a_script():
    assert {path.name for path in HERE.glob("*.svg")} == set(PICTURES)


@pytest.mark.parametrize("path", [*HERE.glob("*.svg"), DOCS / "reference" / "timeouts.svg"])
def test_a_picture_is_legible_in_any_colours_and_on_a_telephone(path):
    drawing = ET.fromstring(path.read_text(encoding="utf-8"))
    wide, tall = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    back = next(one for one in drawing.iter(f"{SVG}rect") if one.get("class") == "back")
    assert (float(back.attrib["width"]), float(back.attrib["height"])) == (wide, tall)
    style = drawing.findtext(f"{SVG}style")
    assert ".back { fill: #fff }" in style
    smallest = min(map(float, re.findall(r"(?:font: |font-size: )([\d.]+)px", style)))
    assert smallest * min(1, TELEPHONE / wide) >= 10
    assert drawing.findtext(f"{SVG}title")


@pytest.mark.parametrize("path", sorted(HERE.glob("*.svg")))
def test_a_picture_is_on_a_page_with_words_for_it(path):
    assert len(SHOWN[path.resolve()].split()) >= 8


def test_each_image_of_a_page_exists_and_has_words_for_it():
    assert [path for path, alt in SHOWN.items() if not path.is_file() or len(alt.split()) < 3] == []


def test_no_image_is_without_a_script():
    """The others are of a script elsewhere in these folders, but for the photograph of a page."""
    made = {"architecture.svg", "timeouts.svg", "dashboard.png", *PICTURES}
    made |= {path.name for path in (DOCS / "pictures").rglob("*")}
    assert {Path(path).name for path in SHOWN} <= made
