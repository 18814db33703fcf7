"""The pictures of the README are those that their script draws."""

from __future__ import annotations

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
