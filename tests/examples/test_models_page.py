"""The page about real models: its pictures and its table are what was measured."""

import json
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "pictures" / "models"
PICTURES = runpy.run_path(str(FOLDER / "draw.py"))["PICTURES"]
RESULTS = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "how-to" / "serve-real-models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_script_draws(name):
    ET.fromstring(PICTURES[name])
    assert (FOLDER / name).read_text(encoding="utf-8") == PICTURES[name], (
        "a picture has changed; run: python docs/pictures/models/draw.py"
    )
    assert f"../pictures/models/{name}" in PAGE


@pytest.mark.parametrize("name", RESULTS)
def test_the_table_has_the_measured_rates(name):
    result = RESULTS[name]
    (row,) = (line for line in PAGE.splitlines() if f"(`{name}`)" in line)
    one, (size, most) = result["rates"]["1"], list(result["rates"].items())[-1]
    assert f"| {one:,g} {result['unit']}/s | {most:,g} {result['unit']}/s, {size} |" in row
    assert f"| {most / one:.1f} |" in row
    advice = result["tune"]["max_batch_size"] if result["tune"] else "none"
    assert f"| {advice} |" in row
