"""The pictures of the README are those that their script draws."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
PICTURES = runpy.run_path(str(FOLDER / "draw.py"))["PICTURES"]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_script_draws(name):
    drawn = PICTURES[name]()
    ET.fromstring(drawn)
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn, (
        "a picture has changed; run: python docs/pictures/draw.py"
    )
    assert "<script" not in drawn


def test_each_picture_has_a_script():
    assert {path.name for path in FOLDER.glob("*.svg")} == set(PICTURES)
    photographs = list(FOLDER.glob("*.png"))
    assert all(path.with_suffix(".py").exists() for path in photographs)
    assert max(path.stat().st_size for path in photographs) <= 150_000


def test_the_readme_shows_pictures_that_have_a_script():
    shown = re.findall(
        r"!\[[^]]*\]\(([^)]+)\)", (FOLDER.parents[1] / "README.md").read_text("utf-8")
    )
    assert len(shown) == 4
    assert {Path(path).parent for path in shown} == {Path("docs/pictures")}
