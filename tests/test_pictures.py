"""The pictures of the pages: what their scripts draw, legible on a telephone, each on a page."""

import re
import runpy
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.diagrams import draw as diagrams

DOCS = Path(__file__).parents[1] / "docs"
PICTURES, MODELS, DIAGRAMS = DOCS / "pictures", DOCS / "pictures" / "models", DOCS / "diagrams"
ARCHITECTURE, TIMEOUTS = (
    runpy.run_path(f"{DOCS}/{name}.py") for name in ("architecture", "timeouts")
)
# What draws each picture, and how the script is run.
DRAWN = {
    ARCHITECTURE["PICTURE"]: (ARCHITECTURE["picture"], "docs/architecture.py"),
    TIMEOUTS["PICTURE"]: (TIMEOUTS["picture"], "docs/timeouts.py"),
}
for name, draw in runpy.run_path(f"{PICTURES}/draw.py")["PICTURES"].items():
    DRAWN[PICTURES / name] = draw, "docs/pictures/draw.py"
for name, drawn in runpy.run_path(f"{MODELS}/draw.py")["PICTURES"].items():
    DRAWN[MODELS / name] = partial(str, drawn), "docs/pictures/models/draw.py"
for name, draw in diagrams.PICTURES.items():
    DRAWN[DIAGRAMS / name] = draw, "-m docs.diagrams.draw"
SVG = "{http://www.w3.org/2000/svg}"
TELEPHONE = 390 - 2 * 16  # the window, without the margins of a page
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
SHOWN = {
    (path.parent / target).resolve(): alt
    for path in DOCS.rglob("*.md")
    for alt, target in IMAGE.findall(path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_a_picture_is_what_its_script_draws(path):
    draw, script = DRAWN[path]
    drawn = draw()
    ET.fromstring(drawn)
    assert path.read_text(encoding="utf-8") == drawn, f"it has changed; run: python {script}"
    assert "<script" not in drawn


@pytest.mark.parametrize("folder", [PICTURES, MODELS, DIAGRAMS], ids=lambda path: path.name)
def test_each_picture_has_a_script(folder):
    assert {*folder.glob("*.svg")} <= DRAWN.keys()


def test_each_photograph_has_a_script_and_is_small():
    photographs = list(PICTURES.glob("*.png"))
    assert all(path.with_suffix(".py").exists() for path in photographs)
    assert max(path.stat().st_size for path in photographs) <= 150_000


def test_the_readme_shows_pictures_that_have_a_script():
    shown = IMAGE.findall((DOCS.parent / "README.md").read_text("utf-8"))
    assert len(shown) == 4
    assert {Path(path).parent for _, path in shown} == {Path("docs/pictures")}


@pytest.mark.parametrize(
    "path", [*DIAGRAMS.glob("*.svg"), TIMEOUTS["PICTURE"]], ids=lambda path: path.name
)
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


@pytest.mark.parametrize("path", sorted(DIAGRAMS.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_on_a_page_with_words_for_it(path):
    assert len(SHOWN[path.resolve()].split()) >= 8


def test_each_image_of_a_page_exists_and_has_words_for_it():
    assert [path for path, alt in SHOWN.items() if not path.is_file() or len(alt.split()) < 3] == []


def test_no_image_is_without_a_script():
    """The others are of a script elsewhere in these folders, but for the photograph of a page."""
    made = {"dashboard.png", *(path.name for path in (*DRAWN, *PICTURES.rglob("*")))}
    assert {path.name for path in SHOWN} <= made
